{{/* What pods of every kind have in common: dict "root" $ "component" "server". */}}
{{- define "sis.pod" -}}
{{- $values := .root.Values -}}
{{- $isNode := eq .component "memcached" -}}
{{- $placed := ternary $values.memcached $values $isNode -}}
{{- $affinity := ternary dict $placed.affinity (eq .component "test") -}}
{{- if and $isNode (not (hasKey $affinity "podAntiAffinity")) -}}
{{- $affinity = merge (include "sis.apart" . | fromYaml) $affinity -}}
{{- end -}}
serviceAccountName: {{ include "sis.serviceAccount" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: {{ $values.user }}
  runAsGroup: {{ $values.group }}
  fsGroup: {{ $values.group }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with $values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- if and $values.runtimeClassName (not $isNode) }}
runtimeClassName: {{ $values.runtimeClassName }}
{{- end }}
{{- with $placed.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $placed.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Of the forms replicas and fleet: the spec of a server's pod. */}}
{{- define "sis.serverPod" -}}
{{- $server := dict "root" . "component" "server" -}}
{{ include "sis.pod" $server }}
topologySpreadConstraints:
  {{- range $key := list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
  - topologyKey: {{ $key }}
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "sis.selector" $server | nindent 8 }}
  {{- end }}
terminationGracePeriodSeconds: {{ add .Values.shutdownGraceSeconds 15 }}
{{- with .Values.extraInitContainers }}
initContainers: {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - {{ include "sis.container" . | nindent 4 | trim }}
  {{- if .Values.proxy.enabled }}
  {{- include "sis.proxyContainer" . | nindent 2 }}
  {{- end }}
  {{- with .Values.extraContainers }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with include "sis.volumes" . }}
volumes: {{- . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Of memcached nodes: two on one machine would be lost together. */}}
{{- define "sis.apart" -}}
podAntiAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels: {{- include "sis.selector" . | nindent 10 }}
{{- end -}}

{{/* Metadata of a pod template. No version is in it, which would restart memcached at each upgrade. */}}
{{- define "sis.podMetadata" -}}
labels:
  {{- include "sis.selector" . | nindent 2 }}
  {{- with .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- $annotations := .root.Values.podAnnotations -}}
{{- if and .root.Values.proxy.enabled (eq .component "server") -}}
{{- /* HAProxy reads its files once. */ -}}
{{- $checksum := print (include "sis.proxyConfiguration" .root) (include "sis.proxyRenewal" .root) | sha256sum -}}
{{- $annotations = merge (dict "checksum/proxy" $checksum) $annotations -}}
{{- end -}}
{{- with $annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
