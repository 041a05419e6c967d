"""Uses icestream inside a program, without a server: `python examples/embedded.py [DIRECTORY]`."""

import asyncio
import sys
import tempfile
from pathlib import Path

from icestream.config import Settings
from icestream.storage import IcebergStorage, StartPosition


async def main(directory: Path) -> None:
    async with IcebergStorage(Settings(data_dir=directory)) as storage:
        await storage.initialize_topic("default/events")
        offsets = await storage.store("default/events", [b"first", b"second", b"third"])
        print(f"stored at offsets {offsets.start} to {offsets.stop - 1}, durable on disk")

        reader = await storage.create_reader("default/events", StartPosition.offset(offsets.start), follow=False)
        async for message in reader:
            print(message.offset, message.payload.decode())

        # A subscription keeps its position. Run this again on the same directory: it continues after "second".
        async with await storage.create_message_stream("default/events", "billing") as stream:
            async for message in stream:
                print(f"billing has {message.payload.decode()}, delivered {message.redelivery_count} times before")
                await stream.ack(message)
                if message.offset == offsets.start + 1:
                    break
        progress = await storage.get_progress("default/events", "billing")
        print(f"billing is done with everything below offset {progress.floor}")

        stats = await storage.get_topic_stats("default/events")
        print(f"{stats.message_count} messages, {stats.bytes_stored} bytes")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(Path(sys.argv[1])))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            asyncio.run(main(Path(temporary)))
