import './app.css';
import { mount } from 'svelte';
import App from './App.svelte';
import { startRouter } from './lib/route.svelte';
import { theme } from './lib/theme.svelte';

theme.apply();
startRouter();
mount(App, { target: document.getElementById('app') as HTMLElement });
