"""The strict base of every parameter model, and the mark that tells deciding keys from operational ones."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

OPERATIONAL: JsonDict = {"operational": True}


def operational(default: Any, **kwargs: Any) -> Any:
    """A field that never decides a result (how often to save, how many to keep, paths of logs): no part of a run id."""
    return Field(default, json_schema_extra=OPERATIONAL, **kwargs)


class Strict(BaseModel):
    """Unknown keys and wrong types are refused; values never change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)


def deciding(model: BaseModel) -> dict[str, Any]:
    """The deciding part of a parameter model as plain data: operational fields are left out, at every depth."""
    kept: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        if isinstance(field.json_schema_extra, dict) and field.json_schema_extra.get("operational"):
            continue
        kept[name] = _plain(getattr(model, name))
    return kept


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return deciding(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
