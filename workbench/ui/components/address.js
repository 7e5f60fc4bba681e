/* Addresses of this page's own server, also behind a path prefix. */
(function (wb) {
  "use strict";

  /** Where the routes of what the page looks at begin: "" for the engine, "runs/ID/" for a saved run that is open. */
  wb.runRoot = "";

  /** URL of a `route` of the server with `parameters`; `protocol` ("ws:") where it is not the page's own. */
  wb.serverAddress = function (route, parameters, protocol) {
    const root = window.gradio_config && window.gradio_config.root ? new URL(window.gradio_config.root, location.href).pathname : location.pathname;
    const url = new URL(root.replace(/\/?$/, "/") + route, location.origin);
    if (protocol) url.protocol = protocol;
    for (const [name, value] of Object.entries(parameters || {})) url.searchParams.set(name, value);
    return url;
  };

  /** The same for the live feed and the history of what the page looks at. */
  wb.address = (route, parameters, protocol) => wb.serverAddress(wb.runRoot + route, parameters, protocol);
})((window.wb = window.wb || {}));
