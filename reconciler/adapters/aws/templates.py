"""Launch templates in the account: made once, found again by their name.

The name follows from the content, so «exists already» means that it is the one we want.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from threading import Lock
from typing import Any, Final

from reconciler.adapters.aws.errors import Failure, boto_errors, failure_of, our_error
from reconciler.ports import Clock

_CALL: Final = "ec2:CreateLaunchTemplate"


class Templates:
    """Knows which templates are there, so that a second launch costs no call."""

    def __init__(self, ec2: Any, clock: Clock) -> None:
        self._ec2 = ec2
        self._clock = clock
        self._known: set[str] = set()
        self._used: dict[str, datetime] = {}
        self._lock = Lock()

    def ensure(self, templates: Sequence[dict[str, Any]]) -> None:
        """Make those that are not known to be there.

        Raises:
            TransientCloudError, CloudError: EC2 did not make one.
        """
        with self._lock:
            for template in templates:
                name = template["LaunchTemplateName"]
                self._used[name] = self._clock.now()
                if name not in self._known:
                    self._create(template)
                    self._known.add(name)

    def recreate(self, templates: Sequence[dict[str, Any]]) -> None:
        """Make them again: someone has deleted one behind our back."""
        with self._lock:
            self._known.difference_update(t["LaunchTemplateName"] for t in templates)
        self.ensure(templates)

    def used_since(self, moment: datetime) -> set[str]:
        """Return the templates that launches of this process have wanted since then."""
        with self._lock:
            return {name for name, at in self._used.items() if at > moment}

    def forget(self, name: str) -> None:
        """Note that one is about to be deleted: the next launch makes it again."""
        with self._lock:
            self._known.discard(name)
            self._used.pop(name, None)

    def _create(self, template: dict[str, Any]) -> None:
        try:
            self._ec2.create_launch_template(**template)
        except boto_errors() as error:
            if failure_of(error) is not Failure.EXISTS:
                raise our_error(_CALL, error) from error
