"""What all generated header classes have in common: to and from the text fields of a header.

msgspec does the work in one call, because it already knows the type and the wire name of each
field. Only when it refuses do we look for the culprit ourselves, so that the message names the
field as the peer spelled it and the value it sent.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Final, Self

import msgspec

from tianzhou.wire.errors import HeaderFieldError

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

_JAVA_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,64}")
_VALUE_CHARACTERS_MAX = 64
"""Enough of a wrong value to recognise it; it is untrusted and may go into a log."""


class ExtFields(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The typed fields of one kind of header. Subclasses are generated from spec/requests.toml."""

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Unknown fields are ignored: every peer adds some of its own."""
        try:
            # Not strict: each value is text and is read as its field's type.
            return msgspec.convert(ext, cls, strict=False)
        except msgspec.ValidationError as error:
            plain = _with_plain_integers(cls, ext)
            if plain == ext:
                raise _explain(cls, ext, error) from None
        try:
            return msgspec.convert(plain, cls, strict=False)
        except msgspec.ValidationError as error:
            raise _explain(cls, ext, error) from None

    def to_ext(self) -> dict[str, str]:
        """All fields that have a value, as Java does: what is absent is None there."""
        ext: dict[str, str] = {}
        for name, wire_name in zip(
            self.__struct_fields__, self.__struct_encode_fields__, strict=True
        ):
            value: str | int | bool | None = getattr(self, name)
            if value is None:
                continue
            ext[wire_name] = _to_text(value)
        return ext


def _to_text(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _with_plain_integers(cls: type[ExtFields], ext: Mapping[str, str]) -> dict[str, str]:
    """The fields, with integers that only Java accepts (`007`, `+7`) rewritten for msgspec. Text
    fields are never changed."""
    plain = dict(ext)
    for field in msgspec.structs.fields(cls):
        value = plain.get(field.encode_name, "")
        if _JAVA_INTEGER.fullmatch(value):
            try:
                msgspec.convert(value, field.type, strict=False)
            except msgspec.ValidationError:
                plain[field.encode_name] = str(int(value))
    return plain


def _explain(
    cls: type[ExtFields], ext: Mapping[str, str], error: msgspec.ValidationError
) -> HeaderFieldError:
    for field in msgspec.structs.fields(cls):
        wire_name = field.encode_name
        if wire_name not in ext:
            if field.required:
                return HeaderFieldError(
                    wire_name, f"{cls.__name__} needs the field {wire_name}, which is missing"
                )
            continue
        value: object = ext[wire_name]
        try:
            msgspec.convert(value, field.type, strict=False)
        except msgspec.ValidationError as reason:
            shown = repr(value)[:_VALUE_CHARACTERS_MAX]
            return HeaderFieldError(
                wire_name, f"{cls.__name__}: field {wire_name} is {shown}: {reason}"
            )
    return HeaderFieldError("", f"{cls.__name__}: {error}")
