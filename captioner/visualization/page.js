// Starts the viewers of a page that is one file (page.py). The photo is in it once: as the picture
// that is there without scripts too.
(function () {
  "use strict";
  window.viewers = Array.from(document.querySelectorAll(".captioner"), function (element) {
    const photo = element.querySelector("img").src;
    const content = JSON.parse(element.nextElementSibling.textContent);
    return new window.CaptionViewer(element, { photo, ...content });
  });
})();
