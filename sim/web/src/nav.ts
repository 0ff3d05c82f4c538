// The pages that `uslab page` writes side by side, as links. A page that is written alone has none beside it, and its list is hidden.

import { $, made } from './draw.ts';

const PAGES = [
  ['index.html#start', 'Start'], ['index.html#compare', 'Side by side'], ['replay.html', 'A kernel\'s trace'], ['index.html#play', 'Allocators'], ['index.html#course', 'Course'], ['index.html#designs', 'Designs'], ['index.html#words', 'Glossary'],
  ['scale.html', 'Scaling'], ['story.html', 'A race'],
] as const;

/** Fills it in; `current` is where one is. */
export function nav(current: string): void {
  if ($('nav').hidden) return;
  $('nav').replaceChildren(...PAGES.map(([href, title]) => {
    const anchor = made('a', { href }, title);
    if (href === current) anchor.ariaCurrent = 'page';
    return anchor;
  }));
}
