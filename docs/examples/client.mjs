#!/usr/bin/env node
// Requests text from `anneal serve` over its Unix socket and prints the text as it arrives.
//
//     node docs/examples/client.mjs "Once upon a time" [SOCKET]
//
// Needs only Node.

import { createConnection } from "node:net";
import { join } from "node:path";
import { createInterface } from "node:readline";

/** Yields the lines of the answer; the last line has `done`. */
async function* generate(path, prompt, fields = {}) {
  const connection = createConnection(path);
  connection.write(JSON.stringify({ prompt, stream: true, ...fields }) + "\n");
  try {
    for await (const line of createInterface({ input: connection })) {
      const answer = JSON.parse(line);
      if (answer.error) throw new Error(answer.error.message);
      yield answer;
      if (answer.done) return;
    }
  } finally {
    connection.destroy();
  }
}

const [prompt = "Once upon a time", path = join(process.env.XDG_RUNTIME_DIR ?? "", "anneal", "anneal.sock")] =
  process.argv.slice(2);
for await (const answer of generate(path, prompt, { max_tokens: 64 })) {
  process.stdout.write(answer.text);
  if (answer.done) {
    const speed = answer.timings.decode_tokens_per_second ?? 0;
    console.log();
    console.error(`${answer.usage.completion_tokens} tokens, ${speed.toFixed(1)} t/s, stopped: ${answer.stop}`);
  }
}
