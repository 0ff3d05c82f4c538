// What a page carries beside its program, in elements of their own.

import { $ } from './draw.ts';

/** The digits of base 85: printable ASCII, except what means something in HTML, in strings or in templates. */
const DIGITS = Array.from({ length: 94 }, (_, n) => n + 33).filter((code) => !'"&\'<>\\`{}'.includes(String.fromCharCode(code)));

/** Gzip, in base 85: five digits are four bytes, and an incomplete group lacks its last digits. */
export async function unpacked(id: string): Promise<Uint8Array<ArrayBuffer>> {
  const text = $(id).textContent, bytes = new Uint8Array(Math.floor(text.length * 4 / 5)), values = new Uint8Array(127);
  DIGITS.forEach((code, value) => (values[code] = value));
  for (let at = 0, to = 0; at < text.length; at += 5, to += 4) {
    let word = 0;
    for (let i = at; i < at + 5; i++) word = word * 85 + (i < text.length ? values[text.charCodeAt(i)]! : 84);
    for (let i = 0; i < 4; i++) bytes[to + i] = word / 2 ** (24 - 8 * i);
  }
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
