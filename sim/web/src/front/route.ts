// Where one is, in the page's address: a name and its values.

export interface Route {
  page: string;
  values: URLSearchParams;
}

export function here(): Route {
  const values = new URLSearchParams(location.hash.slice(1));
  const [page] = values.keys();
  if (page) values.delete(page);
  return { page: page ?? 'start', values };
}

export const link = (page: string, values: Record<string, string> = {}): string =>
  `#${[page, new URLSearchParams(values).toString()].filter(Boolean).join('&')}`;
