"""Records of regraft's runs in a store, written so that the next run can recover from a stopped one."""
