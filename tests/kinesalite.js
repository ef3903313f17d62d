// Kinesalite on the loopback, with what its own command line cannot do. Usage: node FILE FOLDER
// FOLDER holds node_modules. The port is the first line of the output; it ends with its input.
'use strict'
const path = require('path')
const modules = path.join(process.argv[2], 'node_modules')

// A line "advance MILLISECONDS" of the input moves the server's clock: retention is 24 h at least.
let ahead = 0
const now = Date.now
Date.now = () => now() + ahead

// Kinesalite never answers AT_TIMESTAMP where no record is as new: LATEST is the same place then.
const name = require.resolve(path.join(modules, 'kinesalite/actions/getShardIterator'))
const ask = require(name)
require.cache[name].exports = (store, data, answer) => {
  if (data.ShardIteratorType !== 'AT_TIMESTAMP') return ask(store, data, answer)
  let answered = false
  const latest = Object.assign({}, data, {ShardIteratorType: 'LATEST'})
  delete latest.Timestamp
  const watched = Object.create(store)
  watched.getStreamDb = (stream) => {
    const records = Object.create(store.getStreamDb(stream))
    records.createReadStream = (options) =>
      Object.getPrototypeOf(records)
        .createReadStream(options)
        .on('end', () => answered || ask(store, latest, answer))
    return records
  }
  ask(watched, data, (...all) => {
    answered = true
    answer(...all)
  })
}

const server = require(path.join(modules, 'kinesalite'))({
  createStreamMs: 5,
  deleteStreamMs: 5,
  updateStreamMs: 5,
  shardLimit: 10000,
})
// The service tells its clock in each answer; Node's own header would tell this machine's.
server.prependListener('request', (_, response) => {
  response.setHeader('Date', new Date(Date.now()).toUTCString())
})
server.listen(0, '127.0.0.1', () => console.log(server.address().port))

require('readline')
  .createInterface({input: process.stdin})
  .on('line', (line) => {
    ahead += Number(line.split(' ')[1])
    console.log('advanced')
  })
  .on('close', () => process.exit(0))
