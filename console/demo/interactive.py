"""The demo in the console: the first frame is on screen before the server starts and the run is made."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack

from console.collector import Collector
from console.command.opening import Opening
from console.command.session import make_link
from console.demo.prepare import Demo, is_finished, make_run
from console.demo.returning import again, ways_back
from console.demo.server import ssh_server
from console.demo.settings import HOST


async def run_console(demo: Demo) -> int:
    """Until the person detaches; the run goes on. A failure to prepare ends the console and is raised."""
    async with AsyncExitStack() as stack:
        link = make_link(demo.config, demo.config.hosts[HOST])
        collector = await stack.enter_async_context(Collector(link, demo.choice.run))

        async def prepare(app: Opening) -> None:
            await stack.enter_async_context(ssh_server(demo.place, demo.choice.ssh_port))
            link.viewer = True
            await stack.enter_async_context(link)
            if not await make_run(link, demo) and await is_finished(link, demo):
                app.notify(f"This run is finished. Leave with q; `{again(demo)} --fresh` makes a new one.", timeout=8)

        await Opening(collector, prepare).show()
    print("\n".join(ways_back(demo)), file=sys.stderr)
    return 0
