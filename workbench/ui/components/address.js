/* Addresses of this page's own server, also behind a path prefix. */
(function (wb) {
  "use strict";

  /** URL of `route` with `parameters`; `protocol` ("ws:") where it is not the page's own. */
  wb.address = function (route, parameters, protocol) {
    const root = window.gradio_config && window.gradio_config.root ? new URL(window.gradio_config.root, location.href).pathname : location.pathname;
    const url = new URL(root.replace(/\/?$/, "/") + route, location.origin);
    if (protocol) url.protocol = protocol;
    for (const [name, value] of Object.entries(parameters || {})) url.searchParams.set(name, value);
    return url;
  };
})((window.wb = window.wb || {}));
