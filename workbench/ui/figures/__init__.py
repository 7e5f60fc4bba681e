"""Pure functions from data to plotly figures. Colours come from the stylesheet, by the figure's class in the page."""
