"""A page in the browser for people who do not use a terminal (``regraft ui``, ``docs/page.md``).

The pages call :mod:`regraft.api` with option structs and render its typed reports. Whatever reads or writes a whole
store runs as a job in a process of its own (:mod:`regraft.page.jobs`).
"""
