// What pages carry, in base 85, as src/carried.ts reads it.

const DIGITS = Array.from({ length: 94 }, (_, n) => String.fromCharCode(n + 33)).filter((digit) => !'"&\'<>\\`{}'.includes(digit));

export function decoded(text) {
  const values = new Map(DIGITS.map((digit, value) => [digit, value])), bytes = Buffer.alloc(Math.ceil(text.length / 5) * 4);
  for (let at = 0; at < text.length; at += 5) {
    bytes.writeUInt32BE([0, 1, 2, 3, 4].reduce((word, i) => word * 85 + (values.get(text[at + i]) ?? 84), 0), at / 5 * 4);
  }
  return bytes.subarray(0, Math.floor(text.length * 4 / 5));
}

export function encoded(bytes) {
  const all = Buffer.concat([bytes, Buffer.alloc(3)]), words = [];
  for (let at = 0; at < bytes.length; at += 4) {
    const word = all.readUInt32BE(at);
    words.push([4, 3, 2, 1, 0].map((power) => DIGITS[Math.floor(word / 85 ** power) % 85]).join(''));
  }
  return words.join('').slice(0, Math.ceil(bytes.length * 5 / 4));
}
