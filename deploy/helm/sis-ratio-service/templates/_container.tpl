{{/* --store, by form. */}}
{{- define "sis.store" -}}
{{- if eq (include "sis.hasVolume" .) "true" -}}
rocksdb:/var/lib/sis{{ if .Values.store.rocksdb.sync }}?sync=1{{ end }}
{{- else if eq .Values.store.kind "redis" -}}
{{- $redis := .Values.store.redis -}}
{{- $options := list -}}
{{- if $redis.passwordSecret -}}
{{- $options = append $options "password_file=/etc/sis/redis/password" -}}
{{- end -}}
{{- if $redis.caSecret -}}
{{- $options = append $options "ca=/etc/sis/authority/ca.crt" -}}
{{- end -}}
{{ ternary "rediss" "redis" $redis.tls }}://
{{- with $redis.user }}{{ . }}@{{ end }}
{{- $redis.address | default (include "sis.redisAddress" .) }}
{{- with $options }}?{{ join "&" . }}{{ end }}
{{- else -}}
memory
{{- end -}}
{{- end -}}

{{/* Of all messages in flight. */}}
{{- define "sis.messagesMiB" -}}
{{- mul (int .Values.memory.messageMiB) (int .Values.memory.messagesInFlight) -}}
{{- end -}}

{{/* MiB of the container, as docs/configuration.md ("Memory") adds them up. */}}
{{- define "sis.memoryMiB" -}}
{{- $memory := .Values.memory -}}
{{- $cache := int $memory.cacheMiB -}}
{{- /* As received, and as parsed. */ -}}
{{- $messages := mul 2 (int (include "sis.messagesMiB" .)) -}}
{{- $store := ternary 128 0 (hasPrefix "rocksdb:" (include "sis.store" .)) -}}
{{- /* Of the host: 40 MiB that the device copies from and to, and an allowance for the driver. */ -}}
{{- $device := ternary 512 0 (gt (int .Values.gpu.count) 0) -}}
{{- add $cache (div (add $cache 15) 16) $messages (mul 3 (int $memory.runs)) $store $device 256 -}}
{{- end -}}

{{/* The computed requests and limits, and what the values put in their place. */}}
{{- define "sis.resources" -}}
{{- $memory := printf "%sMi" (include "sis.memoryMiB" .) -}}
{{- $limits := dict "memory" $memory -}}
{{- if gt (int .Values.gpu.count) 0 -}}
{{- $_ := set $limits "nvidia.com/gpu" (int .Values.gpu.count) -}}
{{- end -}}
{{- $requests := dict "cpu" (int .Values.evaluateThreads) "memory" $memory -}}
{{- mergeOverwrite (dict "requests" $requests "limits" $limits) (deepCopy .Values.resources) | toYaml -}}
{{- end -}}

{{- define "sis.listen" -}}
{{- if eq .Values.form "sidecar" -}}
unix:/run/sis/socket
{{- else if include "sis.proxied" . -}}
127.0.0.1:{{ .Values.ports.behindProxy }}
{{- else -}}
0.0.0.0:{{ .Values.ports.grpc }}
{{- end -}}
{{- end -}}

{{/* Half of the runs unless a number is given, so that nobody alone can take all. */}}
{{- define "sis.runsPerOwner" -}}
{{- int .Values.memory.runsPerOwner | default (max 1 (div (int .Values.memory.runs) 2)) -}}
{{- end -}}

{{/* The flags of sis_server, one per line, by name. */}}
{{- define "sis.flags" -}}
{{- $mebibyte := 1048576 -}}
{{- $flags := dict
  "listen" (include "sis.listen" .)
  "admin" (printf "0.0.0.0:%d" (int .Values.ports.admin))
  "cache_bytes" (mul (int .Values.memory.cacheMiB) $mebibyte)
  "grpc_memory_bytes" (mul (int (include "sis.messagesMiB" .)) $mebibyte)
  "max_message_bytes" (mul (int .Values.memory.messageMiB) $mebibyte)
  "max_runs" (int .Values.memory.runs)
  "max_runs_per_owner" (include "sis.runsPerOwner" .)
  "run_idle_expiry" .Values.memory.runIdleExpiry
  "evaluate_threads" (int .Values.evaluateThreads)
  "store" (include "sis.store" .)
  "backend" (ternary "cuda" "cpu" (gt (int .Values.gpu.count) 0))
  "shutdown_grace" (printf "%ds" (int .Values.shutdownGraceSeconds)) -}}
{{- $security := .Values.security -}}
{{- if $security.insecure -}}
{{- $_ := set $flags "insecure" "true" -}}
{{- end -}}
{{- if and $security.tlsSecret (include "sis.proxied" .) -}}
{{- $_ := set $flags "proxy_certificate" "/etc/sis/tls/tls.crt" -}}
{{- else if $security.tlsSecret -}}
{{- $_ := set $flags "tls_certificate" "/etc/sis/tls/tls.crt" -}}
{{- $_ := set $flags "tls_key" "/etc/sis/tls/tls.key" -}}
{{- if $security.clientCertificates -}}
{{- $_ := set $flags "tls_client_ca" "/etc/sis/tls/ca.crt" -}}
{{- end -}}
{{- end -}}
{{- if $security.identitiesSecret -}}
{{- $_ := set $flags "identities" "/etc/sis/identities/identities" -}}
{{- end -}}
{{- if gt (int .Values.gpu.count) 0 -}}
{{- $device := int .Values.gpu.cacheMiB -}}
{{- $_ := set $flags "device_cache_bytes" (ternary -1 (mul $device $mebibyte) (lt $device 0)) -}}
{{- end -}}
{{- range $name, $value := .Values.flags -}}
{{- $_ := set $flags $name $value -}}
{{- end -}}
{{- $lines := list -}}
{{- range $name := keys $flags | sortAlpha -}}
{{- $lines = append $lines (printf "- --%s=%v" $name (get $flags $name)) -}}
{{- end -}}
{{- join "\n" $lines -}}
{{- end -}}

{{/* The server's container. */}}
{{- define "sis.container" -}}
name: server
image: {{ include "sis.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args: {{- include "sis.flags" . | nindent 2 }}
ports:
  {{- if and (ne .Values.form "sidecar") (not (include "sis.proxied" .)) }}
  - {name: grpc, containerPort: {{ .Values.ports.grpc }}}
  {{- end }}
  - {name: admin, containerPort: {{ .Values.ports.admin }}}
{{- if eq .Values.form "sidecar" }}
# The trainer starts when this succeeds. The cache is taken and touched before the server is ready, at
# about a second per GiB.
startupProbe:
  httpGet: {path: /readyz, port: admin}
  periodSeconds: 2
  failureThreshold: {{ add 60 (div (int .Values.memory.cacheMiB) 512) }}
{{- else }}
# Not /readyz: a store that is repaired may take hours to open, and would begin anew.
startupProbe:
  httpGet: {path: /livez, port: admin}
  periodSeconds: 2
  failureThreshold: 30
{{- end }}
readinessProbe:
  httpGet: {path: /readyz, port: admin}
  periodSeconds: 5
  timeoutSeconds: 2
  failureThreshold: 2
livenessProbe:
  httpGet: {path: /livez, port: admin}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- with .Values.extraEnv }}
env: {{- toYaml . | nindent 2 }}
{{- end }}
resources: {{- include "sis.resources" . | nindent 2 }}
securityContext: {{- toYaml .Values.securityContext | nindent 2 }}
{{- with include "sis.mounts" . }}
volumeMounts: {{- . | nindent 2 }}
{{- end }}
{{- end -}}
