/** Lists of names in the URL: with commas, those in names escaped. */

export function listOf(text: string | undefined): string[] {
  return text ? text.split(',').map(unescaped) : [];
}

export function listText(names: readonly string[]): string {
  return names.map((name) => name.replace(/[%,]/g, encodeURIComponent)).join(',');
}

function unescaped(text: string): string {
  return text.replace(/%(25|2C)/gi, (escaped) => decodeURIComponent(escaped));
}
