// What a page carries beside its program, in elements of their own.

import { $ } from './draw.ts';

/** Gzip, as base64. */
export async function unpacked(id: string): Promise<Uint8Array<ArrayBuffer>> {
  const bytes = Uint8Array.from(atob($(id).textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
