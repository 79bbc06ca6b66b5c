import { defineConfig } from 'vite'

// The page and its server have one origin, as in production behind one proxy.
const server = process.env.APP_SERVER ?? 'http://127.0.0.1:3001'
const proxy = { '/api': server, '/shapes': server }

export default defineConfig({ server: { proxy }, preview: { proxy } })
