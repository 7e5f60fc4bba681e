() => {
  // Theme: what the visitor chose last, else what the system prefers. Only the class of the body changes.
  const read = () => { try { return localStorage.getItem('wb-theme'); } catch { return null; } };
  const keep = (theme) => { try { localStorage.setItem('wb-theme', theme); } catch { /* private window: not kept */ } };
  const apply = (theme) => {
    document.body.classList.toggle('dark', theme === 'dark');
    document.dispatchEvent(new CustomEvent('wb-theme', { detail: theme }));
  };
  const asked = new URLSearchParams(location.search).get('__theme');
  const system = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
  apply(['light', 'dark'].includes(asked) ? asked : read() || system);
  // On a narrow page the sidebar lies over everything: start with it closed, and close it by a click beside it.
  const isNarrow = () => innerWidth <= 900;
  const openSidebar = () => document.querySelector('.sidebar.open');
  const toggleSidebar = () => openSidebar()?.querySelector('.toggle-button')?.click();
  if (isNarrow()) toggleSidebar();
  document.addEventListener('click', (event) => {
    if (isNarrow() && openSidebar() && event.isTrusted && !event.target.closest('.sidebar')) toggleSidebar();
  });
  document.addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && isNarrow()) toggleSidebar();
  });
  document.addEventListener('click', (event) => {
    if (event.target.id !== 'wb-theme') return;
    const theme = document.body.classList.contains('dark') ? 'light' : 'dark';
    keep(theme);
    apply(theme);
  });
}
