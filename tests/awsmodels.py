"""Caches what botocore and moto would compute again for every client and call.

The tests create thousands of clients, each for a separate account. A third of their time would be
spent on the same methods, shapes and lists of operations. Nothing here depends on an account.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any, Final

_DONE: Final[set[str]] = set()


@cache
def session() -> Any:
    """Return one session of botocore, for tests that look things up in the API models."""
    import botocore.session

    return botocore.session.get_session()


def share_models() -> None:
    """Share what is equal for all clients, once a test has loaded botocore and moto."""
    for module, share in _SHARED.items():
        if module in sys.modules and module not in _DONE:
            _DONE.add(module)
            share(sys.modules[module])


def _share_loader(module: Any) -> None:
    load_cached = cache(module.create_loader)

    def create_once(*data_path: str | None) -> Any:
        loader = load_cached(*data_path)
        # boto3 adds its own path each time
        loader._search_paths[:] = dict.fromkeys(loader._search_paths)
        return loader

    module.create_loader = create_once


def _share_moto_methods(responses: Any) -> None:
    responses.method_names_from_class = cache(responses.method_names_from_class)


def _drop_offerings(types: Any) -> None:
    """Drop a table of 15 MB that no call of ours reads."""
    types.INSTANCE_TYPE_OFFERINGS.pop("availability-zone-id", None)


def _share_client_models(client: Any) -> None:
    creator = client.ClientCreator
    load, create = creator._load_service_model, creator._create_methods
    models: dict[tuple[str, str | None], Any] = {}
    methods: dict[str, dict[str, Any]] = {}

    def load_once(self: Any, service: str, api_version: str | None = None) -> Any:
        key = service, api_version
        if key not in models:
            models[key] = load(self, service, api_version)
        return models[key]

    def create_once(self: Any, model: Any) -> dict[str, Any]:
        if model.service_name not in methods:
            methods[model.service_name] = create(self, model)
        return dict(methods[model.service_name])

    creator._load_service_model, creator._create_methods = load_once, create_once


_SHARED: Final = {
    "botocore.session": _share_loader,
    "moto.core.utils": _share_loader,
    "moto.core.responses": _share_moto_methods,
    "moto.ec2.models.instance_types": _drop_offerings,
    "botocore.client": _share_client_models,
}
