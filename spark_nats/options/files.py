"""Files that options and contexts name: their contents, and what an error may show of such a name.

What ought to be the name of a file of secrets may be the secret itself, in any disguise: in base64, in hex, as a URI or
as a whole context. No list of what looks secret is complete. So an error shows a name only if it is known to be that of
a file, or a short path of plain words.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_MAX_SHOWN = 200  # characters
# Words as people name files, between dots, dashes and underscores; nothing that is encoded looks like this throughout.
_WORD = "(?:[A-Z]?[a-z]{1,16}|[A-Z]{1,5})[0-9]{0,3}|[0-9]{1,4}"
_PLAIN = re.compile(f"[._-]?(?:{_WORD})(?:[._-](?:{_WORD}))*")
_ROOTS = ("", "~", ".", "..")
_ENDINGS = (".creds", ".nk", ".seed", ".pem", ".key", ".crt", ".cer", ".json")


def path_of(name: str) -> Path:
    """Return the path of a file; ``~`` is the home directory, for a user who has one."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def read_file(name: str) -> bytes:
    """Return the content of a file, which only the driver reads.

    Raises ValueError, without the name of the file.
    """
    try:
        return path_of(name).read_bytes()
    except OSError as error:
        reason = error.strerror
    except ValueError:  # a NUL in it
        reason = "No such file"
    raise ValueError(f"cannot be read: {reason}")  # not below an error that has the name


def may_file_name_be_shown(name: str) -> bool:
    """Return whether an error may show what ought to be the name of a file.

    It may if there is such a file. Else all parts must be plain words, and the first folder must exist, or the name end
    as those of such files do: a secret may consist of plain words, but has no such mark.
    """
    if len(name) > _MAX_SHOWN or not name.isprintable():
        return False
    if name and os.path.lexists(path_of(name)):
        return True
    *folders, last = name.split("/")
    named = [i for i, folder in enumerate(folders) if folder not in _ROOTS]
    if not is_plain(last) or not all(is_plain(folders[i]) for i in named):
        return False
    return last.endswith(_ENDINGS) or (bool(named) and path_of("/".join(folders[: named[0] + 1])).is_dir())


def is_plain(name: str) -> bool:
    """Return whether a name, such as that of a field, consists of plain words."""
    return len(name) <= _MAX_SHOWN and _PLAIN.fullmatch(name) is not None


def read_text_file(name: str, instead: str) -> str:
    """Return the text in a file.

    Args:
        name: the name of the file, as a user has set it.
        instead: what else goes where, for what cannot be read.

    Raises:
        ValueError: it cannot be read. The message shows the name only if it is harmless.
    """
    try:
        content = read_file(name).decode("utf-8", "replace")
    except ValueError as error:
        reason = str(error)
    else:
        if "\ufffd" in content:
            raise ValueError(f"is {shown_file_name(name)}, which is not a text file")
        return content
    if may_file_name_be_shown(name):
        raise ValueError(f"is {name!r}, which {reason}")
    raise ValueError(
        f"must be the name of a file; its value, which may be a secret and is not shown, {reason}; {instead}"
    )


def shown_file_name(name: str) -> str:
    """Return the name of a file, as an error may show it."""
    return repr(name) if may_file_name_be_shown(name) else "a file whose name may be a secret and is not shown"
