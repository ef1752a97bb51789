// What the user keeps in each base. Paths under `content` are texts of this sample; everything else is v1's own shape.

export const pages = {
  'https://museum.example/visit': 'pages/visit.html',
  'https://museum.example/history/lighthouse': 'pages/lighthouse.html',
  'https://museum.example/volunteers': 'pages/volunteers.html',
  'https://museum.example/ferry': 'pages/ferry.html',
  'https://garden.example/种子图书馆': 'pages/seed-library.html',
  'https://clippings.example/regatta-1936': 'pages/regatta.html',
}

export const sitemaps = {
  'https://museum.example/sitemap.xml': [
    'https://museum.example/visit',
    'https://museum.example/volunteers',
    'https://museum.example/ferry',
  ],
}

const small = { id: 'text-embedding-3-small', provider: 'openai', name: 'text-embedding-3-small', group: 'text-embedding-3' }

export const bases = [
  {
    id: 'GSI9AeE0DFjMMy8kHBcdh',
    name: 'Harbour museum',
    description: 'Everything the guides ask for at the desk',
    model: small,
    rerankModel: { id: 'bge-reranker-v2-m3', provider: 'silicon', name: 'BAAI/bge-reranker-v2-m3', group: 'BAAI' },
    dimensions: 32,
    chunkSize: 300,
    chunkOverlap: 40,
    threshold: 0.6,
    documentCount: 8,
    created: '2025-02-21T09:12:00Z',
    items: [
      { type: 'file', text: 'museum/marigold.txt', as: 'pdf', origin: 'Pilot cutter Marigold.pdf' },
      { type: 'file', text: 'museum/opening-hours.md', origin: 'Opening hours and access.md' },
      { type: 'file', text: 'museum/fog-bell.txt', origin: 'Fog bell: how to ring it.txt', remark: 'ask Tomas before editing' },
      { type: 'file', text: 'museum/objects.csv', origin: 'Object list.csv' },
      { type: 'file', text: 'museum/lamp-room.html', origin: 'Lamp room label.html' },
      { type: 'url', url: 'https://museum.example/visit', remark: 'Visitor page' },
      { type: 'url', url: 'https://museum.example/history/lighthouse' },
      { type: 'url', url: 'https://museum.example/tide-tables' },
      { type: 'sitemap', url: 'https://museum.example/sitemap.xml' },
      { type: 'note', text: 'notes/rota.txt' },
      { type: 'note', text: 'notes/biscuit.txt', sourceUrl: 'https://blog.example/curator/ships-biscuit' },
      { type: 'file', text: 'museum/green-book.json', origin: 'Green book.json' },
      { type: 'url', url: 'https://museum.example/press', idle: true },
    ],
  },
  {
    id: 'garden:2025/spring',
    name: '社区菜园 🌱',
    description: '青石桥菜园的资料',
    model: { id: 'BAAI/bge-m3', provider: 'silicon', name: 'BAAI/bge-m3', group: 'BAAI' },
    dimensions: 1024,
    chunkSize: 200,
    chunkOverlap: 30,
    documentCount: 6,
    created: '2025-02-24T13:40:00Z',
    items: [
      { type: 'file', text: 'garden/rules.md', origin: '菜园守则.md' },
      { type: 'file', text: 'garden/compost.txt', as: 'docx', origin: '堆肥手册（第二版）.docx' },
      { type: 'file', text: 'garden/weather.txt', origin: '天气日记 🌤️.txt' },
      { type: 'file', text: 'garden/planting.json', origin: '播种表.json' },
      { type: 'url', url: 'https://garden.example/种子图书馆' },
      { type: 'note', text: 'notes/garden-meeting.txt' },
      { type: 'note', text: 'notes/garden-chat.txt' },
    ],
  },
  {
    id: 'E5CiaimJp06icDac5j8qM',
    name: 'Boat workshop',
    model: small,
    chunkSize: 300,
    chunkOverlap: 40,
    preprocessProvider: {
      type: 'preprocess',
      provider: { id: 'mineru', name: 'MinerU', apiKey: 'not-a-real-key', apiHost: 'https://mineru.example' },
    },
    created: '2025-03-02T18:05:00Z',
    items: [
      {
        type: 'directory',
        path: '/home/mei/Documents/Boat workshop',
        // in the order in which v1 finished them
        files: [
          { name: 'safety.txt', text: 'workshop/safety.txt' },
          { name: 'README.md', text: 'workshop/readme.md' },
          { name: 'notes/绳结 knots.md', text: 'workshop/knots.md' },
          { name: 'README (copy).md', text: 'workshop/readme-copy.md' },
          { name: 'stock/inventory-2023.json', text: 'workshop/inventory-2023.json' },
          { name: 'stock/inventory-2024.json', text: 'workshop/inventory-2024.json' },
          { name: 'survey.json', text: 'workshop/survey.json' },
          { name: 'poster.html', text: 'workshop/poster.html' },
          { name: 'Varnish.pdf', text: 'workshop/varnish.txt', as: 'pdf' },
        ],
      },
      { type: 'note', text: 'notes/caulking.txt' },
    ],
  },
  {
    id: '4SmiO86DdI2WCH6-albea',
    name: 'Old clippings',
    model: small,
    dimensions: 32,
    chunkSize: 300,
    chunkOverlap: 40,
    documentCount: 6,
    created: '2025-03-06T20:31:00Z',
    keepBytes: 6000, // the copy of its vector file stopped there
    items: [
      { type: 'file', text: 'clippings/tugboat.txt', origin: 'Brave Henrietta.txt' },
      { type: 'url', url: 'https://clippings.example/regatta-1936' },
    ],
  },
]
