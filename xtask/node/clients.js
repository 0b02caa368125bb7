// Tests a server with npm client packages, and prints one JSON object per task.
//
// Arguments: the address of the server, and the name of its model. `cargo xtask test --clients` runs this script with
// the packages of package-lock.json. The model may have random weights, so the tasks check only the form of the
// answers.

import { readFileSync } from "node:fs";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateObject, generateText, stepCountIs, streamText, tool } from "ai";
import OpenAI, { APIError, NotFoundError } from "openai";
import { z } from "zod";

const [address, model] = process.argv.slice(2);
const access = { baseURL: `${address}/v1`, apiKey: "none" };
const client = new OpenAI(access);
const compatible = createOpenAICompatible({
  name: "anneal",
  ...access,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const official = createOpenAI(access);
const models = [compatible(model), official(model), official.chat(model)];
const user = [{ role: "user", content: "Is steel harder than iron?" }];
const ask = { prompt: "Is steel harder than iron?", maxOutputTokens: 1500, maxRetries: 0 };
const Verdict = z.object({ metal: z.enum(["steel", "iron"]), isHarder: z.boolean() });
const choose = { description: "Choose.", inputSchema: z.object({ metal: z.enum(["steel", "iron"]) }) };

function check(condition, found) {
  if (!condition) throw new Error(JSON.stringify(found)?.slice(0, 300));
}

// Returns the error of `run`, which must fail.
async function failure(run) {
  try {
    await run();
  } catch (error) {
    return error;
  }
  throw new Error("no error");
}

// Runs `run` while the only slot of the server is busy, so that other requests wait.
async function whileBusy(run) {
  const running = await client.completions.create({
    model, prompt: "a", max_tokens: 60000, stream: true, ignore_eos: true, seed: 1,
  });
  await running[Symbol.asyncIterator]().next();
  try {
    await run();
  } finally {
    running.controller.abort();
  }
}

// Time limit of a request that must time out in the queue.
const short = { timeout_s: 0.3 };
const timedOut = /timed out before its first token/;

async function openaiChat() {
  const stream = await client.chat.completions.create({
    model, messages: user, max_tokens: 8, stream: true, stream_options: { include_usage: true },
  });
  let last;
  for await (const chunk of stream) last = chunk;
  check(last.usage.completion_tokens > 0, last);
  const response = await client.responses.stream({ model, input: "Which?", max_output_tokens: 8 }).finalResponse();
  check(response.output_text.length > 0, response);
}

async function openaiErrors() {
  const missing = await failure(() => client.chat.completions.create({ model: "none", messages: user }));
  check(missing instanceof NotFoundError && missing.param === "model", missing);
  await whileBusy(async () => {
    const chat = { model, messages: user, stream: true, ...short };
    const streams = [
      () => client.chat.completions.create(chat),
      () => client.completions.create({ model, prompt: "a", stream: true, ...short }),
      () => client.responses.create({ model, input: "a", stream: true, ...short }),
    ];
    for (const stream of streams) {
      const error = await failure(async () => { for await (const _ of await stream()); });
      check(error instanceof APIError && error.code === "deadline" && timedOut.test(error.message), error);
    }
  });
}

async function aiText() {
  for (const chosen of models) {
    const result = streamText({ model: chosen, ...ask, maxOutputTokens: 8 });
    const parts = [];
    for await (const part of result.textStream) parts.push(part);
    const usage = await result.usage;
    check(parts.length > 0 && usage.outputTokens > 0 && usage.inputTokens > 0, usage);
  }
}

async function aiObject() {
  for (const chosen of models) {
    const { object } = await generateObject({ model: chosen, schema: Verdict, ...ask });
    check(Verdict.safeParse(object).success, object);
  }
}

async function aiTool() {
  for (const chosen of models) {
    const calls = [];
    const execute = async (input) => {
      calls.push(input.metal);
      return "done";
    };
    const tools = { choose: tool({ ...choose, execute }) };
    // The call is streamed, and the second step sends its result.
    const result = streamText({
      model: chosen, tools, ...ask,
      prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
      stopWhen: stepCountIs(2),
      maxOutputTokens: 300,
    });
    await result.consumeStream({ onError: (error) => { throw error; } });
    const steps = await result.steps;
    check(steps.length === 2 && ["steel", "iron"].includes(calls[0]), { steps: steps.length, calls });
  }
}

async function aiErrors() {
  const missing = await failure(() => generateText({ model: compatible("none"), ...ask }));
  check(APICallError.isInstance(missing) && missing.statusCode === 404, missing);
  const late = (url, request) =>
    fetch(url, { ...request, body: JSON.stringify({ ...JSON.parse(request.body), ...short }) });
  await whileBusy(async () => {
    const official = createOpenAI({ ...access, fetch: late });
    const compatible = createOpenAICompatible({ name: "anneal", ...access, fetch: late });
    for (const chosen of [compatible(model), official(model), official.chat(model)]) {
      const errors = [];
      await streamText({ model: chosen, ...ask, onError: ({ error }) => { errors.push(error); } }).consumeStream();
      check(errors.length > 0 && timedOut.test(errors[0].message), errors);
    }
  });
}

const tasks = [
  ["openai", "chat and response, streamed", openaiChat],
  ["openai", "errors: unknown model, inside streams", openaiErrors],
  ["ai", "streamed text from chats and responses", aiText],
  ["ai", "object with a schema", aiObject],
  ["ai", "streamed tool call and its result", aiTool],
  ["ai", "errors: unknown model, inside streams", aiErrors],
];

for (const [name, task, run] of tasks) {
  let error = null;
  try {
    await run();
  } catch (caught) {
    error = `${caught.name}: ${caught.message}`.slice(0, 500);
    process.exitCode = 1;
  }
  const { version } = JSON.parse(readFileSync(new URL(`node_modules/${name}/package.json`, import.meta.url)));
  console.log(JSON.stringify({ client: `${name} (npm)`, version, task, error }));
}
