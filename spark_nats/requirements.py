"""What Spark needs, and how to say that it is missing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from spark_nats.errors import NatsError

_OLDEST_JAVA = 17


class RequirementError(NatsError):
    """PySpark or Java is missing or too old."""


def check_pyspark() -> None:
    """Check that there is a PySpark that we know.

    Raises:
        RequirementError: it is missing or too old.
    """
    try:
        import spark_nats.sparkapi  # noqa: F401
    except ImportError as error:
        raise RequirementError(f'PySpark 4.0 or newer is needed ({error}): pip install "spark-nats[spark]"') from None


def check_requirements() -> None:
    """Check that there is what the demonstration and Spark need, which itself would say it at length.

    Raises:
        RequirementError: PySpark or Java is missing or too old.
    """
    check_pyspark()
    from spark_nats import sparkapi

    if not sparkapi.HAS_READ_LIMITS:
        raise RequirementError(
            "the demonstration needs PySpark 4.2 or newer, for several micro-batches with Trigger.AvailableNow, and "
            f'this is {sparkapi.VERSION}: pip install "pyspark[sql]>=4.2"'
        )
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    wanted = f"Spark needs Java {_OLDEST_JAVA} or newer"
    if java is None:
        raise RequirementError(
            f"{wanted}, and there is none {f'in JAVA_HOME ({home})' if home else 'on PATH'}: install it"
        )
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "([0-9]+)[^"]*"', said)
    if version is None or int(version[1]) < _OLDEST_JAVA:
        found = version[0].removeprefix("version ").strip('"') if version else "of an unknown version"
        raise RequirementError(f"{wanted}, and {java} is {found}: install it, or set JAVA_HOME")
