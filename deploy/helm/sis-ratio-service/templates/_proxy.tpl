{{/* Whether there is a proxy: true, or nothing. */}}
{{- define "sis.proxied" -}}
{{- $enabled := .Values.proxy.enabled -}}
{{- if eq (toString $enabled) "auto" -}}
{{- $enabled = not .Values.networkPolicy.enabled -}}
{{- range .Values.networkPolicy.clients -}}
{{- if or (hasKey . "namespaceSelector") (hasKey . "ipBlock") -}}
{{- $enabled = true -}}
{{- end -}}
{{- end -}}
{{- if or .Values.security.clientCertificates (eq .Values.form "sidecar") -}}
{{- $enabled = false -}}
{{- end -}}
{{- end -}}
{{- if $enabled -}}true{{- end -}}
{{- end -}}

{{/* HAProxy's configuration: 2.6.12 and later take it. */}}
{{- define "sis.proxyConfiguration" -}}
{{- $calls := mul 10 (int .Values.proxy.callsPerSecond) -}}
global
  log stdout format raw local0 notice
  maxconn {{ .Values.proxy.connections }}
  nbthread {{ .Values.proxy.cores }}
  # A soft stop ends before the pod's time is up.
  hard-stop-after {{ add .Values.shutdownGraceSeconds 10 }}s
  tune.h2.initial-window-size 1048576
  {{- if .Values.security.tlsSecret }}
  # The key of tls.crt is in tls.key.
  ssl-load-extra-del-ext
  lua-load /etc/sis/proxy/renewal.lua
  {{- end }}
  ssl-default-bind-options ssl-min-ver TLSv1.2
  .if version_atleast(3.0)
  # Frames that make no sense, of one connection.
  tune.h2.fe.glitches-threshold 200
  .endif

defaults
  mode http
  log global
  # Connections that come and go are no news.
  option dontlog-normal
  # Each message goes on at once, and what a client has given up goes nowhere.
  option http-no-delay
  option abortonclose
  # A server that is away is the client's to deal with.
  retries 0
  timeout connect 5s
  timeout http-request 10s
  # Of a stream without messages; clients open it again.
  timeout client 1h
  timeout server 1h

frontend grpc
  bind :{{ .Values.ports.grpc }} {{ ternary "ssl crt /etc/sis/tls/tls.crt alpn h2" "proto h2" (ne .Values.security.tlsSecret "") }}
  # Calls that are reset as soon as they come cost nothing: no rule sees them, and no server. The
  # others count; who makes too many loses the connection, and gets none until the rate has fallen.
  stick-table type ipv6 size 100k expire 30s store http_req_rate(10s)
  tcp-request connection track-sc0 src
  tcp-request connection reject if { sc0_http_req_rate gt {{ $calls }} }
  http-request reject if { sc0_http_req_rate gt {{ $calls }} }
  default_backend server

backend server
  server server 127.0.0.1:{{ .Values.ports.behindProxy }} proto h2
{{- end -}}

{{/* HAProxy reads a certificate only when it starts. This gives it the renewed one. */}}
{{- define "sis.proxyRenewal" -}}
local path = "/etc/sis/tls/tls.crt"

-- Certificates and key, one text.
local function read()
  local texts = {}
  for i, name in ipairs({path, "/etc/sis/tls/tls.key"}) do
    local file = assert(io.open(name))
    texts[i] = file:read("a")
    file:close()
  end
  return table.concat(texts, "\n")
end

local shown = read()

core.register_task(function()
  while true do
    core.sleep(10)
    local taken, why = pcall(function()
      local found = read()
      if found == shown then return end
      -- The field without a name is a whole file, in every version; `crt`, which the documentation
      -- names, is none in 3.0.
      CertCache.set({filename = path, [""] = found})
      shown = found
      core.log(core.notice, path .. ": read again")
    end)
    -- Of half a renewal, say: what is shown stays, until the whole is there.
    if not taken then core.log(core.alert, path .. ": not read again: " .. tostring(why)) end
  end
end)
{{- end -}}

{{/* Its container, beside the server's. */}}
{{- define "sis.proxyContainer" -}}
- name: proxy
  image: {{ .Values.proxy.image }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  command: [haproxy, -db, -f, /etc/sis/proxy/haproxy.cfg]
  ports:
    - {name: grpc, containerPort: {{ .Values.ports.grpc }}}
  readinessProbe:
    tcpSocket: {port: grpc}
    periodSeconds: 5
  livenessProbe:
    tcpSocket: {port: grpc}
    periodSeconds: 10
    failureThreshold: 6
  resources:
    requests:
      cpu: {{ .Values.proxy.cores }}
      memory: {{ .Values.proxy.memoryMiB }}Mi
    limits:
      memory: {{ .Values.proxy.memoryMiB }}Mi
  securityContext: {{- toYaml .Values.securityContext | nindent 4 }}
  volumeMounts:
    - {name: proxy, mountPath: /etc/sis/proxy, readOnly: true}
    {{- if .Values.security.tlsSecret }}
    - {name: tls, mountPath: /etc/sis/tls, readOnly: true}
    {{- end }}
{{- end -}}
