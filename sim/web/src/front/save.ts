// A file for whoever looks at the page.

import { made } from '../draw.ts';

export const download = (file: string, text: string): void =>
  made('a', { href: `data:application/octet-stream;charset=utf-8,${encodeURIComponent(text)}`, download: file }).click();

/** The same of bytes. */
export function downloadBlob(file: string, blob: Blob): void {
  const href = URL.createObjectURL(blob);
  made('a', { href, download: file }).click();
  setTimeout(() => URL.revokeObjectURL(href), 1000);
}
