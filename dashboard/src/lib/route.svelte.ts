/** The hash router: `#/runs/0/ID?sort=-best`. All that a view shows by choice is in the query, so that a link shows it too. */

export type Query = Record<string, string>;

class Route {
  path = $state.raw<string[]>([]);
  query = $state.raw<Query>({});
}

export const route = new Route();

let shown = '';

function show(hash: string): void {
  shown = hash;
  const [path, query = ''] = splitOnce(hash.replace(/^#?\/?/, ''), '?');
  route.path = path.split('/').filter(Boolean).map(decoded);
  route.query = Object.fromEntries(new URLSearchParams(query));
}

function splitOnce(text: string, mark: string): [string, string?] {
  const at = text.indexOf(mark);
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** `#/a/b?x=1`; entries that are null or empty are left out. */
export function href(path: readonly (string | number)[], query: Record<string, string | null | undefined> = {}): string {
  const known = Object.entries(query).filter((pair): pair is [string, string] => Boolean(pair[1]));
  const text = new URLSearchParams(known).toString();
  return `#/${path.map((part) => encodeURIComponent(String(part))).join('/')}${text && `?${text}`}`;
}

export function go(hash: string, replace = false): void {
  if (hash === shown) return;
  try {
    if (replace) history.replaceState(null, '', hash);
    else history.pushState(null, '', hash);
  } catch {
    // A page within a notebook has no address of its own: the view changes without.
  }
  show(hash);
}

/** Changes what the query says; null takes an entry away. `replace` while something is dragged or typed. */
export function setQuery(changes: Record<string, string | null>, replace = true): void {
  go(hrefWith(changes), replace);
}

/** The address of this page with other entries in its query; null takes one away. */
export function hrefWith(changes: Record<string, string | null>): string {
  return href(route.path, { ...route.query, ...changes });
}

export function startRouter(): void {
  show(location.hash || '#/runs');
  addEventListener('hashchange', () => {
    if (location.hash !== shown) show(location.hash || '#/runs');
  });
  addEventListener('popstate', () => show(location.hash || '#/runs'));
  addEventListener('click', (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey)
      return;
    const link = event.target instanceof Element ? event.target.closest('a[href^="#/"]') : null;
    const hash = link?.getAttribute('href');
    if (!hash) return;
    event.preventDefault();
    go(hash);
  });
}
