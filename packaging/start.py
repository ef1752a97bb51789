"""The start of the program that PyInstaller builds (``packaging/regraft.spec``)."""

from regraft.__main__ import main

if __name__ == "__main__":
    main()
