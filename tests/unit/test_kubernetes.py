"""What docs/installing.md gives to Kubernetes is something that Kubernetes takes.

The schema is that of the Spark operator (where it is from, its first line says). The chart of NATS has no schema: the
names of its values are written down here, as those of version 2.14.2 that the page uses.
"""

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.pages import ROOT, blocks_of

SCHEMA = Path(__file__).parents[1] / "kubernetes" / "sparkapplication-v1beta2.json"
VALUES: dict[str, Any] = {
    "config": {
        "cluster": {"enabled": bool, "replicas": int},
        "jetstream": {"enabled": bool, "fileStore": {"pvc": {"size": str}}, "merge": {"sync_interval": str}},
    },
    "podTemplate": {
        "topologySpreadConstraints": {"kubernetes.io/hostname": {"maxSkew": int, "whenUnsatisfiable": str}}
    },
}


def _documents() -> list[dict[str, Any]]:
    blocks = blocks_of(ROOT / "docs" / "installing.md")
    return [yaml.safe_load(block.code) for block in blocks if block.language == "yaml"]


def _application() -> dict[str, Any]:
    (application,) = (document for document in _documents() if document.get("kind") == "SparkApplication")
    return application


def _values() -> dict[str, Any]:
    (values,) = (document for document in _documents() if "config" in document)
    return values


def _strict(schema: Any) -> Any:
    """The schema, with fields that it does not name forbidden; Kubernetes would drop them without a word."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(value) for key, value in schema.items()}
    return {"additionalProperties": False, **strict} if "properties" in strict else strict


def _check(application: dict[str, Any]) -> None:
    jsonschema.validate(application, _strict(json.loads(SCHEMA.read_text())))


def test_the_resource_of_a_query_is_one_that_the_operator_takes() -> None:
    _check(_application())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["spec", "executor", "replicas"], 2),
        (["spec", "restartPolicy", "type"], "Sometimes"),
        (["spec", "driver", "secrets", 0, "secretType"], None),
        (["spec", "volumes", 0, "persistentVolumeClaim", "name"], "checkpoints"),
    ],
)
def test_what_the_operator_does_not_take_is_noticed(path: list[Any], value: Any) -> None:
    application = copy.deepcopy(_application())
    *parents, last = path
    place: Any = application
    for name in parents:
        place = place[name]
    place[last] = value
    with pytest.raises(jsonschema.ValidationError):
        _check(application)


def test_what_pods_mount_is_there() -> None:
    spec = _application()["spec"]
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert {mount["name"] for pod in ("driver", "executor") for mount in spec[pod]["volumeMounts"]} == volumes


def test_the_values_of_the_servers_have_names_that_the_chart_knows() -> None:
    def check(values: dict[str, Any], known: dict[str, Any]) -> None:
        for name, value in values.items():
            assert name in known, name
            if isinstance(known[name], dict):
                check(value, known[name])
            else:
                assert type(value) is known[name], name

    check(_values(), VALUES)
