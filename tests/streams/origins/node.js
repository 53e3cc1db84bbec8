// What an origin behind Node makes of a request. Arguments: port, file to note requests in.
'use strict';
const fs = require('fs');
const http = require('http');
const [, , port, file] = process.argv;
const out = fs.openSync(file, 'a');

// As frameworks read it: the URL standard, which knows `\` and dot segments, then one decoding.
function reading(target) {
  try {
    return decodeURIComponent(new URL(target, 'http://origin').pathname);
  } catch (error) {
    return target;
  }
}

const server = http.createServer({ maxHeaderSize: 1 << 20 }, (request, response) => {
  request.on('error', () => {});
  request.resume().on('end', () => {
    const host = (request.headers.host || '').toLowerCase();
    fs.writeSync(out, `${host}\t${request.url}\t${reading(request.url)}\n`);
    response.end('ok');
  });
});
server.listen(Number(port), '127.0.0.1');
