/** Light or dark: as the system has it, or as chosen here. Storage may be missing, as on file://. */

export type Choice = 'system' | 'light' | 'dark';

const KEY = 'hopyard-theme';
const dark = matchMedia('(prefers-color-scheme: dark)');

class Theme {
  choice = $state<Choice>(stored());
  system = $state(dark.matches);

  get isDark(): boolean {
    return this.choice === 'system' ? this.system : this.choice === 'dark';
  }

  choose(choice: Choice): void {
    this.choice = choice;
    this.apply();
    try {
      localStorage.setItem(KEY, choice);
    } catch {
      // Not kept then.
    }
  }

  apply(): void {
    document.documentElement.dataset.theme = this.isDark ? 'dark' : 'light';
  }
}

function stored(): Choice {
  try {
    const choice = localStorage.getItem(KEY);
    return choice === 'light' || choice === 'dark' ? choice : 'system';
  } catch {
    return 'system';
  }
}

export const theme = new Theme();

dark.addEventListener('change', () => {
  theme.system = dark.matches;
  theme.apply();
});

/** The value of a CSS variable of the page now. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
