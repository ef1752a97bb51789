// Small PDF and Word files from plain text, the same bytes every time.
// In the text a line that starts with "# " is a heading, every other non-empty line a paragraph.
import { strToU8, zipSync } from 'fflate'

const blocksOf = (text) =>
  text
    .split('\n')
    .filter((line) => line.trim())
    .map((line) => (line.startsWith('# ') ? { heading: line.slice(2) } : { paragraph: line }))

function wrap(paragraph, width) {
  const lines = ['']
  for (const word of paragraph.split(' ')) {
    const last = lines.at(-1)
    if (last && last.length + 1 + word.length > width) lines.push(word)
    else lines[lines.length - 1] = last ? `${last} ${word}` : word
  }
  return lines
}

/** A PDF in Helvetica without compression; the text must be ASCII. */
export function pdf(text, linesPerPage = 26) {
  const lines = blocksOf(text).flatMap(({ heading, paragraph }) => [
    ...(heading ? [{ size: 15, text: heading }] : wrap(paragraph, 84).map((part) => ({ size: 11, text: part }))),
    { size: 11, text: '' },
  ])
  const pages = []
  while (lines.length) pages.push(lines.splice(0, linesPerPage))

  // The usual room for later edits. It also lifts the file over 4 KB: smaller ones the v1 reader at times takes for broken.
  const metadata = '<?xpacket begin="" id="W5M0MpCehiHzreSzNTczkc9d"?>\n' + `${' '.repeat(99)}\n`.repeat(40) + '<?xpacket end="w"?>'
  const objects = [
    '<< /Type /Catalog /Pages 2 0 R /Metadata 4 0 R >>',
    `<< /Type /Pages /Count ${pages.length} /Kids [${pages.map((_, i) => `${5 + 2 * i} 0 R`).join(' ')}] >>`,
    '<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>',
    `<< /Type /Metadata /Subtype /XML /Length ${metadata.length} >>\nstream\n${metadata}\nendstream`,
  ]
  pages.forEach((page, i) => {
    const shown = page.map((line, row) => {
      const escaped = line.text.replace(/[\\()]/g, '\\$&')
      return `BT /F1 ${line.size} Tf 60 ${780 - 26 * row} Td (${escaped}) Tj ET`
    })
    const stream = shown.join('\n')
    objects.push(
      '<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] ' +
        `/Resources << /Font << /F1 3 0 R >> >> /Contents ${6 + 2 * i} 0 R >>`,
      `<< /Length ${stream.length} >>\nstream\n${stream}\nendstream`,
    )
  })

  let out = '%PDF-1.4\n'
  const offsets = objects.map((body, i) => {
    const offset = out.length
    out += `${i + 1} 0 obj\n${body}\nendobj\n`
    return offset
  })
  const table = offsets.map((offset) => `${String(offset).padStart(10, '0')} 00000 n \n`).join('')
  const size = objects.length + 1
  out += `xref\n0 ${size}\n0000000000 65535 f \n${table}trailer\n<< /Size ${size} /Root 1 0 R >>\nstartxref\n${out.length}\n%%EOF\n`
  return Buffer.from(out, 'latin1')
}

const xml = (text) => text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;')

/** The smallest Word file that Word and its readers accept. */
export function docx(text) {
  const head = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
  const base = 'http://schemas.openxmlformats.org'
  const mime = 'application/vnd.openxmlformats'
  const paragraphs = blocksOf(text).map(({ heading, paragraph }) => {
    const style = heading ? '<w:rPr><w:b/><w:sz w:val="32"/></w:rPr>' : ''
    return `<w:p><w:r>${style}<w:t xml:space="preserve">${xml(heading ?? paragraph)}</w:t></w:r></w:p>`
  })
  const files = {
    '[Content_Types].xml':
      `${head}<Types xmlns="${base}/package/2006/content-types">` +
      `<Default Extension="rels" ContentType="${mime}-package.relationships+xml"/>` +
      '<Default Extension="xml" ContentType="application/xml"/>' +
      `<Override PartName="/word/document.xml" ContentType="${mime}-officedocument.wordprocessingml.document.main+xml"/></Types>`,
    '_rels/.rels':
      `${head}<Relationships xmlns="${base}/package/2006/relationships">` +
      `<Relationship Id="rId1" Type="${base}/officeDocument/2006/relationships/officeDocument" Target="word/document.xml"/></Relationships>`,
    'word/document.xml':
      `${head}<w:document xmlns:w="${base}/wordprocessingml/2006/main"><w:body>${paragraphs.join('')}</w:body></w:document>`,
  }
  return zip(Object.entries(files).map(([name, body]) => [name, strToU8(body)]))
}

/** A zip of [name, bytes] pairs in that order; a name that ends with "/" is a folder. */
export function zip(members) {
  // zips hold local time, so a local one is the same in every time zone
  return zipSync(Object.fromEntries(members), { level: 9, mtime: new Date(2025, 2, 14, 12) })
}
