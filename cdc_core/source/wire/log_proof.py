"""The proof that a log is the one that was read before: the trace of a fingerprint, compared event by event.

If something is known of the log before a position, reading begins where the trace does. Its events are compared, not
passed on. The last one proves the log; any difference raises DataAtRisk (source.other_log).
"""

from __future__ import annotations

from cdc_core.binlog.event_headers import Event, crc_of, folded
from cdc_core.model.position import Fingerprint, Position, file_number
from cdc_core.source.host.source_faults import history_changed


class LogProof:
    """start: where reading continues once the log is proven. known: of the log before it.

    file, offset: where reading must begin. crossing: the next events are in the file before that of `start`.
    """

    def __init__(self, start: Position, source: str, fingerprint: Fingerprint | None) -> None:
        self.file, self.offset = start.file, start.offset
        if fingerprint is not None and fingerprint.traced:
            self.file, self.offset = fingerprint.file, fingerprint.begin
        elif fingerprint is not None and fingerprint.file != start.file:
            fingerprint = None
        self.crossing = self.file != start.file
        self._start = start
        self._known = fingerprint
        self._crc = 0
        self._where = f"{source}, {start}"

    @property
    def proven(self) -> bool:
        """The log is the known one, or nothing is known of it."""
        return self._known is None

    def compare_format(self, file: str, format_crc: int) -> None:
        """A FORMAT_DESCRIPTION came for a file (event_headers.format_crc)."""
        fingerprint = self._known
        if fingerprint is None or fingerprint.file != file:
            return
        if fingerprint.format_crc != format_crc:
            raise history_changed(f"{file} is not the file that was read", self._where)
        if not fingerprint.traced:
            self._known = None

    def compare(self, event: Event) -> int:
        """An event of the trace. Once it proves the log: the offset from which events are passed on, else -1."""
        fingerprint = self._known
        assert fingerprint is not None
        self._crc = folded(self._crc, crc_of(event))
        end = event.start + event.header.length
        if end < fingerprint.end:
            return -1
        if end > fingerprint.end or self._crc != fingerprint.crc:
            raise history_changed(
                f"the events of {fingerprint.file} from {fingerprint.begin} to {fingerprint.end} are not the ones "
                "that were read",
                self._where,
            )
        self._known = None
        return self._start.offset if fingerprint.file == self._start.file else -1

    def require_end(self, file: str) -> None:
        """An event came after the trace, in a file that should have ended with it."""
        if self.crossing:
            raise history_changed(f"{file} continues after its end", self._where)

    def switch(self, at: str, file: str, next_file: str) -> None:
        """The log continues in another file."""
        backwards = file_number(next_file) < file_number(file)
        if not self.proven or backwards or (self.crossing and next_file != self._start.file):
            raise history_changed(f"after {at} the log continues in {next_file}", self._where)
        self.crossing = False
