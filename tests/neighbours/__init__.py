"""Other programs that write into NATS, and what this connector makes of it: the rows of docs/neighbours.md.

Each script here installs one program, at a pinned version and from a registry of packages, has it write to a server,
reads that with the connector, writes something with the connector, and has the program read it. Above it stands what
was guessed before, and what came. `seen/` has what the scripts print.

    python -m tests.neighbours            # runs all of them and compares; needs go, npm, cargo, a JDK and maven
    python -m tests.neighbours nats-js    # one; --accept keeps what it prints

No test runs them: they fetch much. `tests/unit/test_neighbours.py` compares the versions with those on the page.
"""
