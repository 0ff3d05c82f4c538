// An animated PNG: each picture after the first has only what changed.

export interface Frame {
  image: ImageData;
  /** Milliseconds that it is shown. */
  ms: number;
}

const SIGNATURE = [137, 80, 78, 71, 13, 10, 26, 10];
const CRC = Uint32Array.from({ length: 256 }, (_, n) => {
  for (let bit = 0; bit < 8; bit++) n = n & 1 ? 0xedb88320 ^ n >>> 1 : n >>> 1;
  return n;
});

function chunk(type: string, ...parts: (Uint8Array | number[])[]): Uint8Array<ArrayBuffer> {
  const length = parts.reduce((sum, part) => sum + part.length, 0), bytes = new Uint8Array(12 + length), view = new DataView(bytes.buffer);
  view.setUint32(0, length);
  for (let i = 0; i < 4; i++) bytes[4 + i] = type.charCodeAt(i);
  let at = 8, crc = 0xffffffff;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  for (let i = 4; i < at; i++) crc = CRC[(crc ^ bytes[i]!) & 255]! ^ crc >>> 8;
  view.setUint32(at, ~crc >>> 0);
  return bytes;
}
const four = (...numbers: number[]): number[] => numbers.flatMap((n) => [n >>> 24, n >>> 16 & 255, n >>> 8 & 255, n & 255]);

/** The smallest rectangle that has all differences, at least a pixel. */
function changed(a: Uint32Array, b: Uint32Array, width: number, height: number): [x: number, y: number, w: number, h: number] {
  let [left, top, right, bottom] = [width, height, 0, 0];
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      if (a[y * width + x] === b[y * width + x]) continue;
      [left, right, top, bottom] = [Math.min(left, x), Math.max(right, x + 1), Math.min(top, y), y + 1];
    }
  }
  return right ? [left, top, right - left, bottom - top] : [0, 0, 1, 1];
}

/** Lines of a part of a picture, compressed. */
async function packed({ data, width }: ImageData, [x, y, w, h]: readonly number[]): Promise<Uint8Array<ArrayBuffer>> {
  const lines = new Uint8Array(h! * (1 + 3 * w!));
  let at = 0;
  for (let line = y!; line < y! + h!; line++) {
    at++; // no filter
    for (let own = 4 * (line * width + x!), end = own + 4 * w!; own < end; own += 4) {
      lines[at++] = data[own]!;
      lines[at++] = data[own + 1]!;
      lines[at++] = data[own + 2]!;
    }
  }
  return new Uint8Array(await new Response(new Blob([lines]).stream().pipeThrough(new CompressionStream('deflate'))).arrayBuffer());
}

export async function apng(frames: readonly Frame[]): Promise<Blob> {
  const [{ image: { width, height } }] = frames as [Frame];
  const parts = [Uint8Array.from(SIGNATURE), chunk('IHDR', four(width, height), [8, 2, 0, 0, 0]), chunk('acTL', four(frames.length, 0))];
  let number = 0, before: Uint32Array | null = null;
  for (const { image, ms } of frames) {
    const words = new Uint32Array(image.data.buffer), area = before ? changed(before, words, width, height) : [0, 0, width, height] as const, [x, y, w, h] = area;
    parts.push(chunk('fcTL', four(number++, w, h, x, y), [ms >>> 8, ms & 255, 1000 >>> 8, 1000 & 255, 0, 0]));
    const data = await packed(image, area);
    parts.push(before ? chunk('fdAT', four(number++), data) : chunk('IDAT', data));
    before = words;
  }
  return new Blob([...parts, chunk('IEND')], { type: 'image/apng' });
}
