// What a page carries beside its program, in elements of their own.

import { $ } from './draw.ts';

/** Gzip, as base64. */
export async function unpacked(id: string): Promise<Uint8Array<ArrayBuffer>> {
  const text = atob($(id).textContent), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
