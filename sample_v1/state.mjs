// The rest of what v1 keeps: settings, providers, chats. Only as much as a real backup needs to look like one.

const openai = { provider: 'openai', owned_by: 'openai' }
const chatModel = { id: 'gpt-4o', name: 'GPT-4o', group: 'GPT 4o', ...openai }

const provider = (id, name, apiHost, models) => ({
  id,
  name,
  type: 'openai',
  apiKey: 'sk-not-a-real-key',
  apiHost,
  models,
  isSystem: true,
  enabled: true,
})

const topic = {
  id: '6f1d6a9e-7e0c-4f43-9a54-0d3f5b1a7c11',
  assistantId: 'default',
  name: 'Planning the garden day',
  createdAt: '2025-03-10T08:15:00.000Z',
  updatedAt: '2025-03-10T08:17:30.000Z',
}

const topicMessages = [
  ['user', 'b8f2c1de-52f0-4a0b-8a1c-6c7a1f0f2e01', '3b7a0c52-08d5-4a1e-9f43-53c0f4f3a101', 'success'],
  ['assistant', 'b8f2c1de-52f0-4a0b-8a1c-6c7a1f0f2e02', '3b7a0c52-08d5-4a1e-9f43-53c0f4f3a102', 'paused'],
]

const blockTexts = [
  'Can you plan a morning for twelve people in the community garden? Some of them only speak 中文.',
  // the user pressed stop in the middle of an emoji: half of it is what was stored
  'Gladly! Start at nine with tea, then split into three groups: compost, seedlings, paths \ud83c\udf31. At eleven everybody \ud83d',
]

/** The Redux slices by name, each still an object. */
export function slices(bases) {
  return {
    assistants: {
      defaultAssistant: { id: 'default', name: 'Default Assistant', emoji: '😀', prompt: '', topics: [topic], messages: [], type: 'assistant' },
      assistants: [
        { id: 'default', name: 'Default Assistant', emoji: '😀', prompt: '', topics: [topic], messages: [], type: 'assistant', knowledge_bases: [] },
      ],
      tagsOrder: [],
    },
    knowledge: { bases },
    llm: {
      providers: [
        provider('openai', 'OpenAI', 'https://api.openai.example', [
          chatModel,
          { id: 'text-embedding-3-small', name: 'text-embedding-3-small', group: 'text-embedding-3', ...openai },
        ]),
        provider('silicon', 'Silicon', 'https://api.silicon.example', [
          { id: 'bge-reranker-v2-m3', provider: 'silicon', name: 'BAAI/bge-reranker-v2-m3', group: 'BAAI' },
          { id: 'Qwen/Qwen2.5-7B-Instruct', provider: 'silicon', name: 'Qwen2.5-7B-Instruct', group: 'Qwen' },
        ]),
        { ...provider('ollama', 'Ollama', 'http://localhost:11434', []), apiKey: '', enabled: false },
      ],
      defaultModel: chatModel,
      topicNamingModel: chatModel,
      translateModel: chatModel,
      settings: { ollama: { keepAliveTime: 0 }, lmstudio: { keepAliveTime: 0 } },
    },
    settings: {
      showAssistants: true,
      showTopics: true,
      sendMessageShortcut: 'Enter',
      language: 'en-US',
      targetLanguage: 'zh-cn',
      userName: 'Mei 梅',
      theme: 'dark',
      fontSize: 14,
      codeShowLineNumbers: false,
      webdavHost: '',
      webdavUser: '',
      webdavPass: '',
      webdavPath: '/cherry-studio',
    },
    shortcuts: { shortcuts: [{ key: 'new_topic', shortcut: ['Ctrl', 'N'], editable: true, enabled: true, system: false }] },
    websearch: { defaultProvider: 'local-bing', providers: [], maxResults: 5, excludeDomains: [] },
    _persist: { version: 85, rehydrated: true },
  }
}

/** The Dexie tables by name. */
export function tables(files, notes) {
  return {
    files,
    topics: [
      {
        id: topic.id,
        messages: topicMessages.map(([role, id, block, status], i) => ({
          id,
          role,
          assistantId: 'default',
          topicId: topic.id,
          createdAt: `2025-03-10T08:1${5 + i}:00.000Z`,
          status,
          blocks: [block],
        })),
      },
    ],
    settings: [
      { id: 'image://avatar', value: '🐈' },
      { id: 'translate:target:language', value: 'english' },
    ],
    knowledge_notes: notes,
    translate_history: [],
    quick_phrases: [],
    message_blocks: topicMessages.map(([, message, id, status], i) => ({
      id,
      messageId: message,
      type: 'main_text',
      createdAt: `2025-03-10T08:1${5 + i}:10.000Z`,
      status,
      content: blockTexts[i],
    })),
  }
}
