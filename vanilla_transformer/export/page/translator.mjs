// Translates with the files of an exported folder: greedy search by transformers.js, token for token that of generate().

const FOLDER = "exported";

/**
 * Load tokenizers and model.
 * @param {(path: string) => Promise<Response>} read gives a file of the folder; nothing else is ever asked for.
 * @param {(bytes: ArrayBuffer) => string} toModule gives an address from which a script can be imported.
 * @param {{dtype: string, limit: ?number, margin: ?number, max_new_tokens: number, target_tokenizer: ?string}} settings
 */
export async function load(read, toModule, settings) {
  const bytes = async (path) => (await read(path)).arrayBuffer();
  const library = await import(toModule(await bytes("page/transformers.min.mjs")));
  const { env, AutoTokenizer, AutoModelForSeq2SeqLM } = library;
  Object.assign(env, { allowRemoteModels: false, allowLocalModels: true, localModelPath: "/" });
  Object.assign(env, { useFS: false, useFSCache: false, useBrowserCache: false, useWasmCache: false });
  env.fetch = async (url) => {
    const [, reader, path] = String(url).match(new RegExp(`${FOLDER}(-reader)?/(.*)$`));
    const response = await read(path);
    if (!reader || !path.endsWith("tokenizer.json")) return response;
    // a special token spelled out in a text is text; those around it are added by their ids
    return Response.json({ ...(await response.json()), added_tokens: [] });
  };
  Object.assign(env.backends.onnx.wasm, {
    wasmPaths: { mjs: toModule(await bytes("page/ort-wasm-simd-threaded.mjs")) },
    wasmBinary: await bytes("page/ort-wasm-simd-threaded.wasm"),
    numThreads: 1, // several need headers that static servers do not send
  });
  const reader = await AutoTokenizer.from_pretrained(`${FOLDER}-reader`);
  const source = await AutoTokenizer.from_pretrained(FOLDER);
  const target = settings.target_tokenizer
    ? await AutoTokenizer.from_pretrained(`${FOLDER}/${settings.target_tokenizer}`)
    : source;
  const model = await AutoModelForSeq2SeqLM.from_pretrained(FOLDER, { dtype: settings.dtype, device: "wasm" });
  const forward = model.forward.bind(model);
  model.forward = async (inputs) => {
    const outputs = await forward(inputs);
    // a browser draws between two steps
    await (globalThis.scheduler?.yield?.() ?? new Promise((resolve) => setTimeout(resolve)));
    return outputs;
  };

  class Growing extends library.BaseStreamer {
    constructor(showText) {
      super();
      Object.assign(this, { showText, ids: [], isStart: true });
    }
    put([ids]) {
      const isStart = this.isStart; // of which nothing is text
      this.isStart = false;
      if (isStart) return;
      this.ids.push(...ids);
      this.showText(target.decode(this.ids, { skip_special_tokens: true }).replace(/\ufffd+$/, ""));
    }
    end() {}
  }

  /**
   * Translate one line.
   * @returns its text, the tokens read and written as text, a row of weights (S) for each written token, and whether it is longer
   * than the texts that the model was trained with.
   */
  async function translate(text, showText = () => {}) {
    if (!text.trim()) return { text: "", source: [], target: [], isTooLong: false, attention: [] };
    const inputs = reader(text);
    const length = inputs.input_ids.dims[1];
    const most = settings.margin === null ? settings.max_new_tokens : Math.max(1, length + settings.margin);
    const output = await model.generate({
      ...inputs,
      num_beams: 1,
      do_sample: false,
      max_new_tokens: most,
      streamer: new Growing(showText),
      return_dict_in_generate: true,
      output_attentions: true,
    });
    const ids = output.sequences.tolist()[0].slice(1); // the start token is no output
    return {
      text: target.decode(ids, { skip_special_tokens: true }),
      source: pieces(source, inputs.input_ids.tolist()[0]),
      target: pieces(target, ids),
      isTooLong: settings.limit !== null && length > settings.limit,
      attention: (output.cross_attentions ?? []).map((layers) => meanOfHeads(layers.at(-1))),
    };
  }

  return { translate };
}

/** Return the mean over heads of the weights (1, H, T, S) of the last position. */
function meanOfHeads(weights) {
  const [, heads, queries, keys] = weights.dims;
  const start = (head) => (head * queries + queries - 1) * keys;
  return Array.from({ length: keys }, (_, key) => {
    let sum = 0;
    for (let head = 0; head < heads; head++) sum += weights.data[start(head) + key];
    return sum / heads;
  });
}

/** Return the text that each token adds; "…" for one that ends within a character. */
function pieces(tokenizer, ids) {
  let before = "";
  return ids.map((_, index) => {
    const decoded = tokenizer.decode(ids.slice(0, index + 1), { skip_special_tokens: false });
    const whole = decoded.replace(/\ufffd+$/, "");
    const piece = whole.slice(before.length) || (decoded === whole ? "" : "…");
    before = whole;
    return piece;
  });
}
