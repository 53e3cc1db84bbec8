"""What an origin behind aiohttp makes of a request. Arguments: port, file to note requests in."""

import asyncio
import posixpath
import sys
from urllib.parse import unquote

from aiohttp import web


def reading(target):
    """As servers of files read it: decoded, then normalised."""
    return posixpath.normpath(unquote(target.split("?")[0])).replace("//", "/")


async def main(port, file):
    out = open(file, "a", buffering=1, encoding="latin-1", errors="replace")

    async def answer(request):
        await request.read()
        host = request.headers.get("host", "").lower()
        out.write(f"{host}\t{request.raw_path}\t{reading(request.raw_path)}\n")
        return web.Response(text="ok")

    server = web.Server(answer, max_line_size=1 << 17, max_field_size=1 << 17)
    runner = web.ServerRunner(server)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
