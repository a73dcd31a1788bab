"""From what people pass as `config` to settings."""

import base64
import binascii
import json
import os

from ullage import _C


def read_config(config):
    """Settings of a dict, a path, or the URL-safe base64 of a JSON text.

    Raises ConfigError (a ValueError) naming the key, the value and what is allowed, UnsupportedError
    for a feature that is recognised but not offered, IoError for a file that cannot be read.
    """
    if isinstance(config, dict):
        return _C.Settings.from_text(_to_json(config), "config")
    if isinstance(config, (str, os.PathLike)):
        text = os.fspath(config)
        if not os.path.exists(text):
            decoded = _decode(text)
            if decoded is not None:
                return _C.Settings.from_text(decoded, "config")
        return _C.Settings.from_file(text)
    raise _C.ConfigError(
        f"config is a {type(config).__name__}\nhint: pass a dict, or the path of a ds_config.json"
    )


def _to_json(config):
    try:
        return json.dumps(config)
    except TypeError as error:
        raise _C.ConfigError(
            f"config: {error}\nhint: use numbers, strings, lists, dicts and None only"
        ) from None


def _decode(text):
    try:
        decoded = base64.urlsafe_b64decode(text).decode()
        json.loads(decoded)
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
    return decoded
