"""Walking over the frames of objects, one behind the other, and checking each."""

from icestream.cloud.descriptor import ObjectDescriptor, damaged_object
from icestream.cloud.read_ahead import ReadAhead
from icestream.model.errors import DamagedError, ObjectNotFoundError
from icestream.model.frame_bytes import Complete, Corrupt, Decoded, Incomplete, decode
from icestream.model.frames import Frame


class FrameWalk:
    """Frames are slices of the pieces; only one that reaches from a piece into the next is put together.

    A frame is taken if its checksums match where it stands, if it follows on the one before it, if its part of the
    object holds it wholly, and if its epoch is none that the object cannot have. An object ends with its last offset.
    """

    def __init__(self, pieces: ReadAhead, descriptor: ObjectDescriptor, position: int, offset: int) -> None:
        """The first piece begins at a position of an object; the first frame there does not begin after the offset."""
        self._pieces = pieces
        self._wanted = offset
        self._buffer = memoryview(b"")
        self._at = 0
        self._expected: int | None = None
        """The next frame's offset; not known before the first frame, unless it is an object's first."""
        self._failure: DamagedError | None = None
        self._goes_on = False
        """Nothing is read ahead for who may want no more than the first frames."""
        self._enter(descriptor, position)

    def take(self, max_bytes: int) -> list[Frame]:
        """What follows in one piece, about so many bytes; nothing at the end of all.

        What is sound before a damaged place is given before the error is raised.
        """
        if self._failure is not None:
            raise self._failure
        frames: list[Frame] = []
        nbytes = 0
        while nbytes < max_bytes:
            if self._at == len(self._buffer) and (frames or not self._next_piece()):
                break
            if self._position >= self._part_end:
                self._begin_part()
            outcome = decode(self._buffer, self._at, self._seed + self._position)
            if isinstance(outcome, Incomplete) and frames:
                break
            try:
                frames.append(self._accept(outcome))
            except DamagedError as error:
                if not frames:
                    raise
                self._failure = error
                break
            nbytes += frames[-1].nbytes
        self._goes_on = True
        return frames

    def close(self) -> None:
        self._pieces.close()

    def _next_piece(self) -> bool:
        piece = self._pieces.next(ahead=self._goes_on)
        if piece is None:
            return False
        if piece.range.descriptor is not self._object:
            self._enter(piece.range.descriptor, piece.range.start)
        try:
            data = piece.data()
        except ObjectNotFoundError as error:
            raise self._damaged("the object is gone", None) from error
        except DamagedError as error:
            raise self._damaged(error.message, piece.range.start) from error
        self._buffer, self._at = memoryview(data), 0
        if len(data) != piece.range.length:
            raise self._damaged("the object has fewer bytes than it had", piece.range.start + len(data))
        return True

    def _enter(self, descriptor: ObjectDescriptor, position: int) -> None:
        self._object, self._position = descriptor, position
        if position == 0:
            self._expected = descriptor.first_offset
        self._begin_part()

    def _begin_part(self) -> None:
        part = self._object.part_at(self._position)
        self._seed, self._part_end = part.seed, self._object.part_end(part)

    def _join(self, outcome: Decoded) -> Decoded:
        """Put a frame together that reaches into the following pieces."""
        joined = bytearray(self._buffer[self._at :])
        self._at = len(self._buffer)
        while isinstance(outcome, Incomplete):
            if self._position + outcome.needed > self._part_end:
                raise self._damaged("a frame is cut short", self._position)
            while (missing := outcome.needed - len(joined)) > 0:
                if self._at == len(self._buffer) and not self._next_piece():
                    raise self._damaged("a frame is cut short", self._position)
                joined += self._buffer[self._at : self._at + missing]
                self._at = min(self._at + missing, len(self._buffer))
            outcome = decode(memoryview(joined), 0, self._seed + self._position)
        return outcome

    def _accept(self, outcome: Decoded) -> Frame:
        """The frame at the position, which is moved behind it."""
        at, is_here = self._position, not isinstance(outcome, Incomplete)
        if not is_here:
            outcome = self._join(outcome)
        if not isinstance(outcome, Complete):
            raise self._damaged(outcome.reason if isinstance(outcome, Corrupt) else "a frame is cut short", at)
        frame, length = outcome.frame, outcome.end
        if is_here:
            length, self._at = outcome.end - self._at, outcome.end
        if at + length > self._part_end:
            raise self._damaged("a frame reaches past the end of its part", at)
        self._check_order(frame)
        self._position = at + length
        self._expected = frame.end_offset
        if self._position == self._object.data_bytes and self._expected != self._object.end_offset:
            raise self._damaged("the frames do not end with the object's last offset", self._position)
        return frame

    def _check_order(self, frame: Frame) -> None:
        if self._expected is None and self._object.first_offset <= frame.base_offset <= self._wanted:
            self._expected = frame.base_offset
        if frame.base_offset != self._expected:
            raise self._damaged(f"a frame begins with offset {frame.base_offset}", self._position)
        if frame.epoch > self._object.epoch:
            reason = f"a frame has the epoch {frame.epoch}, the object {self._object.epoch}"
            raise self._damaged(reason, self._position)

    def _damaged(self, reason: str, position: int | None) -> DamagedError:
        first = self._wanted if self._expected is None else self._expected
        return damaged_object(self._object, reason, position=position, first=min(first, self._object.end_offset - 1))
