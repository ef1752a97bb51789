// The v1 side: which loader reads what, one application per base, and an embedder that needs no network.
import { createHash } from 'node:crypto'
import fs from 'node:fs'
import path from 'node:path'

import { JsonLoader, LocalPathLoader, RAGApplicationBuilder, TextLoader } from '@cherrystudio/embedjs'
import { BaseEmbeddings, BaseLoader } from '@cherrystudio/embedjs-interfaces'
import { LibSqlDb } from '@cherrystudio/embedjs-libsql'
import { SitemapLoader } from '@cherrystudio/embedjs-loader-sitemap'
import { WebLoader } from '@cherrystudio/embedjs-loader-web'
import { cleanString } from '@cherrystudio/embedjs-utils'
import { RecursiveCharacterTextSplitter } from '@langchain/textsplitters'
import Sitemapper from 'sitemapper'

export const DIMENSIONS = 32
const LONGEST_INPUT = 1000

/** Counts hashed character pairs: similar texts get similar vectors, and every run the same ones. */
class PairHashEmbeddings extends BaseEmbeddings {
  async getDimensions() {
    return DIMENSIONS
  }

  async embedDocuments(texts) {
    const long = texts.find((text) => text.length > LONGEST_INPUT)
    if (long) throw new Error(`400 Input of ${long.length} characters is longer than the limit of ${LONGEST_INPUT}`)
    return texts.map(embed)
  }

  async embedQuery(text) {
    return embed(text)
  }
}

function embed(text) {
  const vector = new Array(DIMENSIONS).fill(0)
  const characters = [...text.toLowerCase()]
  characters.forEach((character, i) => {
    let hash = 2166136261
    for (const byte of Buffer.from(character + (characters[i + 1] ?? ''))) hash = Math.imul(hash ^ byte, 16777619) >>> 0
    vector[hash % DIMENSIONS] += (hash >>> 16) & 1 ? 1 : -1
  })
  const norm = Math.hypot(...vector)
  return vector.map((value) => Math.fround(value / norm))
}

/** A note of the user; its rows name the page it was clipped from, or just "note". */
class NoteLoader extends BaseLoader {
  constructor({ text, sourceUrl, chunkSize, chunkOverlap }) {
    const digest = createHash('md5').update(text + (sourceUrl ?? '')).digest('hex')
    super(`NoteLoader_${digest}`, { text, sourceUrl }, chunkSize, chunkOverlap)
    this.text = text
    this.sourceUrl = sourceUrl
  }

  async *getUnfilteredChunks() {
    const { chunkSize, chunkOverlap } = this
    const splitter = new RecursiveCharacterTextSplitter({ chunkSize, chunkOverlap })
    for (const pageContent of await splitter.splitText(cleanString(this.text))) {
      yield { pageContent, metadata: { type: 'NoteLoader', source: this.sourceUrl ?? 'note' } }
    }
  }
}

/** The loader that v1 chooses for a file, by its extension. */
export function fileLoader(filePath, chunking) {
  const extension = path.extname(filePath).toLowerCase()
  if (['.pdf', '.csv', '.docx', '.pptx', '.xlsx', '.md'].includes(extension)) {
    return new LocalPathLoader({ path: filePath, ...chunking })
  }
  const text = fs.readFileSync(filePath, 'utf8')
  if (['.html', '.htm'].includes(extension)) return new WebLoader({ urlOrContent: text, ...chunking })
  if (extension === '.json') return new JsonLoader({ object: JSON.parse(text) })
  return new TextLoader({ text, ...chunking })
}

export const loaders = {
  url: (url, chunking) => new WebLoader({ urlOrContent: url, ...chunking }),
  sitemap: (url, chunking) => new SitemapLoader({ url, ...chunking }),
  note: (text, sourceUrl, chunking) => new NoteLoader({ text, sourceUrl, ...chunking }),
}

/** Pages and sitemaps come from memory: nothing is asked of the network. */
export function serve(pages, sitemaps) {
  globalThis.fetch = async (url) =>
    url in pages ? new Response(pages[url], { status: 200 }) : new Response('not found', { status: 404 })
  Sitemapper.prototype.fetch = async function () {
    return { url: this.url, sites: sitemaps[this.url] ?? [], errors: [] }
  }
}

/** Run `work` with the application of one base, whose rows go to the file at `target`. */
export async function withBase(target, work) {
  const database = new LibSqlDb({ path: target })
  const application = await new RAGApplicationBuilder()
    .setModel('NO_MODEL')
    .setEmbeddingModel(new PairHashEmbeddings())
    .setVectorDatabase(database)
    .build()
  try {
    await work(application)
  } finally {
    database.client.close()
  }
}
