"""Launch templates in the account: made once, found again by their name.

The name follows from the content, so «exists already» means that it is the one we want.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any, Final

from reconciler.adapters.aws.errors import Failure, boto_errors, failure_of, our_error

_CALL: Final = "ec2:CreateLaunchTemplate"


class Templates:
    """Knows which templates are there, so that a second launch costs no call."""

    def __init__(self, ec2: Any) -> None:
        self._ec2 = ec2
        self._known: set[str] = set()
        self._lock = Lock()

    def ensure(self, templates: Sequence[dict[str, Any]]) -> None:
        """Make those that are not known to be there.

        Raises:
            TransientCloudError, CloudError: EC2 did not make one.
        """
        with self._lock:
            for template in templates:
                name = template["LaunchTemplateName"]
                if name not in self._known:
                    self._create(template)
                    self._known.add(name)

    def recreate(self, templates: Sequence[dict[str, Any]]) -> None:
        """Make them again: someone has deleted one behind our back."""
        with self._lock:
            self._known.difference_update(t["LaunchTemplateName"] for t in templates)
        self.ensure(templates)

    def _create(self, template: dict[str, Any]) -> None:
        try:
            self._ec2.create_launch_template(**template)
        except boto_errors() as error:
            if failure_of(error) is not Failure.EXISTS:
                raise our_error(_CALL, error) from error
