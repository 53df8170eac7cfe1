// Words of the page, explained where the pointer or the keyboard is; docs/start/glossary.md has the same sentences.
import { html } from "./dom.js";

const TERMS = {
  sink: "More than half of the weight is on the first token, which holds attention that is not needed.",
  previous: "More than half of the weight is on the token before.",
  next: "More than half of the weight is on the token after.",
  identity: "More than half of the weight is on the token itself.",
  separator: "More than half of the weight is on punctuation and special tokens.",
  induction: "Looks at what followed an earlier copy of the token.",
  duplicate: "Looks at an earlier copy of the token.",
  hard: "The heaviest key of a query has nine tenths of its weight or more, on average.",
  permutation: "A hard head whose queries look at keys of their own.",
  alignment: "Cross-attention that moves through what is read as the output is written.",
  local: "Nearly all weight is within a few tokens, with the same pattern everywhere.",
  diffuse: "The weight is spread almost evenly over the keys.",
  mixed: "No single pattern has more than half of the weight.",
  forced: "No query had more than one key to choose from.",
  entropy: "How evenly a query spreads its weight: 0 is one key, 1 is all alike.",
  effect: "What the prediction loses without the head: log p - log p(without), in nats; 0.7 halves p.",
  rollout: "Attention multiplied through the layers, from the output back to the input.",
  query: "The vector of the token that looks.",
  key: "The vector of a token that is looked at; query · key is the score.",
  value: "The vector that a token passes on, times its weight.",
};

// A word with its explanation; one that is unknown, such as "offset -3", has `title` alone.
export function Term({ name, title = "" }) {
  if (!name) return null;
  const text = [TERMS[name], title].filter(Boolean).join(" · ");
  return html`<button class=${`term ${name}`} aria-label=${`${name}: ${text}`}>${name}
    <span role="tooltip">${text}</span></button>`;
}
