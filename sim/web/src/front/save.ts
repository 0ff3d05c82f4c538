// A file for whoever looks at the page.

import { made } from '../draw.ts';

export const download = (file: string, text: string): void =>
  made('a', { href: `data:application/octet-stream;charset=utf-8,${encodeURIComponent(text)}`, download: file }).click();
