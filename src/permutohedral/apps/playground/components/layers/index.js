// Layers from the server: planes of bytes, shown without decoding.

const layers = new Map(); // by name
const watchers = new Set();
const AGAIN = 1000; // milliseconds until a lost socket is opened again
let socket = null;

function toCanvas(bytes, { width, height, channels }) {
  const count = width * height;
  const pixels = new Uint32Array(count);
  const green = channels === 3 ? count : 0;
  const blue = channels === 3 ? 2 * count : 0;
  for (let i = 0; i < count; i++) {
    pixels[i] = 0xff000000 | (bytes[blue + i] << 16) | (bytes[green + i] << 8) | bytes[i];
  }
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  canvas.getContext("2d").putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), width, height), 0, 0);
  return canvas;
}

// a message is the length of its header, the header as JSON, and the bytes
function take(message) {
  const length = new DataView(message).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(message, 4, length)));
  if (head.channels) {
    const bytes = new Uint8Array(message, 4 + length);
    layers.set(head.name, { ...head, bytes, canvas: toCanvas(bytes, head) });
  } else layers.delete(head.name);
  for (const watcher of watchers) watcher(head);
}

function open(session) {
  socket = new WebSocket(`${location.origin.replace("http", "ws")}/layers/${session}`);
  socket.binaryType = "arraybuffer";
  socket.onmessage = (event) => take(event.data);
  // the server sends all layers after a connection
  socket.onclose = () => setTimeout(() => open(session), AGAIN);
}

export function layerOf(name) { return layers.get(name); }

// calls `watcher` with the header of each new layer; returns a function that stops this
export function watch(session, watcher) {
  if (!socket) open(session);
  watchers.add(watcher);
  return () => watchers.delete(watcher);
}
