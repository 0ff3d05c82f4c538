// A slot map: handles lead through slots to packed values; below, the same values in an array with holes.

import { noun } from '../../draw.ts';
import { arrow, box, frameOf, type Look, text } from './ink.ts';

const HIGH = 28, BETWEEN = 46, PLACES = 12;

export function packed(look: Look, width: number): readonly [number, Node[]] {
  const { now, shape, scene } = frameOf<'packed'>(look);
  const lit = now?.is === 'handle' ? now.name : null;
  const handles = shape.handles.filter(({ name, finds }) => finds !== null || name === lit);
  const wide = Math.min(width / PLACES, 76), y = { handles: 22, slots: 22 + HIGH + BETWEEN, values: 22 + 2 * (HIGH + BETWEEN), holes: 22 + 3 * HIGH + 2 * BETWEEN + 58 };
  const middle = (n: number) => (n + 0.5) * wide, nodes: Node[] = [], lines: Node[] = [];
  nodes.push(text(0, 14, width < 480 ? 'handles → slots → places of the values' : 'handles lead to slots, and slots to the places of the values', 'note start'),
    text(0, y.values + HIGH + 31, `packed values: a walk reads ${noun(shape.reads, 'place')}`, 'start strong'),
    text(0, y.holes + HIGH + 17, `array with holes: a walk reads ${noun(shape.checks, 'place')}`, 'start strong'));
  const moved = now?.is === 'value' ? now : null;
  for (const { name, slot, finds } of handles) {
    // A handle is above its slot; a stale handle comes after the last slot.
    const own = name === lit, place = shape.places[slot] ?? null, column = finds === null ? shape.places.length : slot;
    const chip = box({ x: column * wide + 1, y: y.handles, w: wide - 3, h: HIGH }, `${finds === null ? 'ghost' : 'bit set'}${own ? ' lit' : ''}`, finds === null ? `${name} ✗` : name, `handle ${name}: slot ${slot}`);
    nodes.push(chip);
    lines.push(arrow([[middle(column), y.handles + HIGH], [middle(slot), y.slots - 1]], finds === null ? 'dashed' : own ? 'lit' : 'quiet'));
    if (finds !== null && place !== null) lines.push(arrow([[middle(slot), y.slots + HIGH], [middle(place), y.values - 1]], own || moved?.to === place ? 'lit' : 'quiet'));
  }
  for (const [slot, place] of shape.places.entries()) nodes.push(box({ x: slot * wide + 1, y: y.slots, w: wide - 3, h: HIGH }, `${place === null ? 'free' : 'bit set'}`, place === null ? 'free' : wide > 56 ? `place ${place}` : String(place), `slot ${slot}`),
    text(middle(slot) + 9, y.slots - 5, wide > 56 ? `slot ${slot}` : slot, 'note start'));
  for (let place = 0; place < PLACES; place++) {
    const name = shape.values[place], hole = shape.holes[place];
    const own = box({ x: place * wide + 1, y: y.values, w: wide - 3, h: HIGH }, `${name ? 'used' : scene.parts[place]?.is === 'untouched' ? 'untouched' : 'free'}${moved?.to === place ? ' lit' : ''}`, name ?? '', `place ${place}: ${name ?? 'not in use'}`);
    if (name && look.pick) {
      own.classList.add('pick', 'part');
      own.addEventListener('click', () => look.pick!(name));
    }
    nodes.push(own, text(middle(place), y.values + HIGH + 13, place, 'note mid'), box({ x: place * wide + 1, y: y.holes, w: wide - 3, h: HIGH }, hole ? 'used' : hole === null ? 'free' : 'untouched', hole ?? (hole === null ? 'hole' : ''), `place ${place}: ${hole ?? (hole === null ? 'a hole' : 'never used')}`));
  }
  if (moved && moved.from !== moved.to) {
    nodes.push(box({ x: moved.from * wide + 1, y: y.values, w: wide - 3, h: HIGH }, 'ghost', shape.values[moved.to] ?? ''));
    lines.push(arrow([[middle(moved.from), y.values], [(middle(moved.from) + middle(moved.to)) / 2, y.values - 40], [middle(moved.to) + 8, y.values - 1]], 'lit', true));
  }
  return [y.holes + HIGH + 26, [...lines, ...nodes]];
}
