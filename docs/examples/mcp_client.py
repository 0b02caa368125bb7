#!/usr/bin/env python3
"""Uses a local model's tools over the Model Context Protocol, as an agent does.

    pip install mcp
    python3 docs/examples/mcp_client.py "What is steel?" anneal mcp -m model.gguf
    python3 docs/examples/mcp_client.py "What is steel?" anneal mcp --connect SOCKET

What follows the question is the command that the client starts.
"""

import asyncio
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def show(progress, total, message):
    """Called as the answer grows: how many tokens there are, and what is new."""
    print(message or "", end="", flush=True, file=sys.stderr)


async def main():
    question, command, *arguments = sys.argv[1:]
    server = StdioServerParameters(command=command, args=arguments)
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        tools = await session.list_tools()
        print("tools:", ", ".join(tool.name for tool in tools.tools))
        arguments = {"messages": [{"role": "user", "content": question}], "max_tokens": 64}
        answer = await session.call_tool("chat", arguments, progress_callback=show)
        print(file=sys.stderr)
        print(answer.content[0].text)
        return 1 if answer.is_error else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(asyncio.run(main()))
