// Makes backup/ and its zip anew. Linux: the fictitious home /home/mei must be free while it runs, for v1 stores paths.
import { createHash } from 'node:crypto'
import fs from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

import { bases, pages, sitemaps } from './bases.mjs'
import { docx, pdf, zip } from './documents.mjs'
import { slices, tables } from './state.mjs'
import { fileLoader, loaders, serve, withBase } from './writer.mjs'

const HOME = '/home/mei'
const DATA = `${HOME}/.config/CherryStudio/Data`
const BACKUP_TIME = Date.parse('2025-03-14T12:00:00Z')

const here = path.dirname(fileURLToPath(import.meta.url))
const backup = path.join(here, 'backup')
const zipFile = path.join(here, 'cherry-studio.202503141200.zip')
const content = (name) => fs.readFileSync(path.join(here, 'content', name), 'utf8')

const sanitised = (name) => name.replace(/[<>:"/\\|?*]/g, '_')

/** The same UUID for the same thing in every run. */
function uuid(...names) {
  const hex = createHash('sha256').update(names.join('\n')).digest('hex')
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-4${hex.slice(13, 16)}-a${hex.slice(17, 20)}-${hex.slice(20, 32)}`
}

function write(target, bytes) {
  fs.mkdirSync(path.dirname(target), { recursive: true })
  fs.writeFileSync(target, bytes)
}

/** The bytes of a file of the sample, and the extension it has. */
function fileOf({ text, as }) {
  if (as === 'pdf') return { bytes: pdf(content(text)), ext: '.pdf' }
  if (as === 'docx') return { bytes: Buffer.from(docx(content(text))), ext: '.docx' }
  return { bytes: Buffer.from(content(text)), ext: path.extname(text) }
}

const files = []
const notes = []

/** v1 copies an upload to its own folder and keeps this about it. */
function upload(spec, createdAt) {
  const { bytes, ext } = fileOf(spec)
  const id = uuid('file', spec.text)
  const metadata = {
    id,
    name: id + ext,
    origin_name: spec.origin,
    path: `${DATA}/Files/${id}${ext}`,
    size: bytes.length,
    ext,
    type: spec.as ? 'document' : 'text',
    created_at: new Date(createdAt).toISOString(),
    count: 1,
  }
  write(metadata.path, bytes)
  files.push(metadata)
  return metadata
}

/** What v1 books when an item is done: the loader ids, or the error of the one that failed. */
async function indexed(application, toLoad) {
  const booked = []
  let error = ''
  for (const makeLoader of toLoad) {
    try {
      booked.push((await application.addLoader(makeLoader())).uniqueId)
    } catch (caught) {
      booked.push('')
      error = caught.message
    }
  }
  return { booked, error }
}

const kinds = {
  file(spec, item, chunking) {
    item.content = upload(spec, item.created_at - 1000)
    return [() => fileLoader(item.content.path, chunking)]
  },
  url(spec, item, chunking) {
    item.content = spec.url
    return [() => loaders.url(spec.url, chunking)]
  },
  sitemap(spec, item, chunking) {
    item.content = spec.url
    return [() => loaders.sitemap(spec.url, chunking)]
  },
  note(spec, item, chunking) {
    const text = content(spec.text)
    const { sourceUrl } = spec
    item.content = ''
    if (sourceUrl) item.sourceUrl = sourceUrl
    notes.push({ ...item, content: text })
    return [() => loaders.note(text, sourceUrl, chunking)]
  },
  directory(spec, item, chunking) {
    item.content = spec.path
    return spec.files.map((file) => {
      const filePath = `${spec.path}/${file.name}`
      write(filePath, fileOf(file).bytes)
      return () => fileLoader(filePath, chunking)
    })
  },
}

async function makeItem(application, base, spec, number) {
  const created = Date.parse(base.created) + (number + 1) * 60_000
  const item = {
    id: uuid('item', base.id, String(number)),
    baseId: base.id,
    type: spec.type,
    content: '',
    created_at: created,
    updated_at: created,
    processingProgress: 0,
    processingError: '',
    retryCount: 0,
  }
  if (spec.remark) item.remark = spec.remark
  const { chunkSize, chunkOverlap } = base
  const toLoad = kinds[spec.type](spec, item, { chunkSize, chunkOverlap })
  if (spec.idle) return item

  const { booked, error } = await indexed(application, toLoad)
  item.updated_at = created + 20_000
  if (spec.type !== 'directory' && error) {
    return { ...item, processingStatus: 'failed', processingError: error }
  }
  const uniqueId = spec.type === 'directory' ? `DirectoryLoader_${uuid('directory', spec.path)}` : booked[0]
  return { ...item, processingStatus: 'completed', uniqueId, uniqueIds: booked }
}

async function makeBase({ keepBytes, created, ...base }) {
  const items = []
  const target = `${DATA}/KnowledgeBase/${sanitised(base.id)}`
  fs.mkdirSync(path.dirname(target), { recursive: true })
  await withBase(target, async (application) => {
    for (const [number, spec] of base.items.entries()) {
      items.push(await makeItem(application, { ...base, created }, spec, number))
    }
  })
  if (keepBytes) fs.truncateSync(target, keepBytes)
  const time = Date.parse(created)
  return { ...base, items, created_at: time, updated_at: items.at(-1).updated_at, version: 1 }
}

/** Every file and folder below `root`, folders with a "/" at the end, in the order of their names. */
function walk(root, prefix = '') {
  return fs.readdirSync(path.join(root, prefix), { withFileTypes: true })
    .sort((a, b) => (a.name < b.name ? -1 : 1))
    .flatMap((entry) => {
      const name = prefix + entry.name
      return entry.isDirectory() ? [`${name}/`, ...walk(root, `${name}/`)] : [name]
    })
}

function writeBackup(made) {
  const state = Object.entries(slices(made)).map(([name, slice]) => [name, JSON.stringify(slice)])
  const data = {
    time: BACKUP_TIME,
    version: 5,
    localStorage: { 'persist:cherry-studio': JSON.stringify(Object.fromEntries(state)) },
    indexedDB: tables(files, notes),
  }
  fs.rmSync(backup, { recursive: true, force: true })
  fs.cpSync(DATA, path.join(backup, 'Data'), { recursive: true })
  write(path.join(backup, 'data.json'), JSON.stringify(data))
  const members = walk(backup).map((name) => [
    name,
    name.endsWith('/') ? new Uint8Array() : fs.readFileSync(path.join(backup, name)),
  ])
  fs.writeFileSync(zipFile, zip(members))
}

async function main() {
  if (fs.existsSync(HOME)) throw new Error(`${HOME} exists: it is needed for the paths that v1 stores, and is removed afterwards`)
  try {
    serve(Object.fromEntries(Object.entries(pages).map(([url, name]) => [url, content(name)])), sitemaps)
    // an upload that is in no base
    upload({ text: 'museum/question.txt', origin: 'question.txt' }, Date.parse('2025-03-10T08:20:00Z'))
    const made = []
    for (const base of bases) made.push(await makeBase(base))
    writeBackup(made)
  } finally {
    fs.rmSync(HOME, { recursive: true, force: true })
  }
}

await main()
