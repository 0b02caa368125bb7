#!/usr/bin/env python3
"""Uses a local model's tools over the Model Context Protocol, as an agent does.

    pip install mcp
    python3 docs/examples/mcp_client.py "What is steel?" anneal mcp -m model.gguf
    python3 docs/examples/mcp_client.py "What is steel?" anneal mcp --connect SOCKET

The client starts the command that follows the question.
"""

import asyncio
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def show(progress, total, message):
    """Prints the new part of the answer. `progress` is the number of tokens so far."""
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
